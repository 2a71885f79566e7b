from __future__ import annotations

import re

import pytest

from tests.support.example_programs import MARK, PAGES, SOURCES, lines, malleable_lines

INDEX = (PAGES / "README.md").read_text(encoding="utf-8")
ROW = r"^\| \[([a-z0-9_]+\.(?:c|cpp|f90|py))\]\(([a-z0-9_]+)\.md\) \| (\S+?),?(?: .*?)? \| .*? \| (\d+) \| (\d+) \|$"
ROWS = {name: (page, *row) for name, page, *row in re.findall(ROW, INDEX, re.MULTILINE)}
LANGUAGES = {".c": "C", ".cpp": "C++", ".f90": "Fortran", ".py": "Python"}
FENCES = {".c": "c", ".cpp": "cpp", ".f90": "fortran", ".py": "python"}
NAMES = sorted(ROWS)
DROM = re.compile(r"drom|malleability_point|session|grant")


def text_of(page: str) -> str:
    """Return a page."""
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def bare(code: str) -> str:
    """Return code without comments, docstrings and what stands in quotes."""
    comment = r"/\*.*?\*/|^(?://|!)[^\n]*"
    return re.sub(rf'""".*?"""|{comment}|"[^"\n]*"', "", code, flags=re.DOTALL | re.MULTILINE)


def words_of(code: str) -> list[str]:
    """Return the lines of code without indentation, without empty ones and those that stand for others."""
    return [line.strip() for line in code.splitlines() if line.strip() not in ("", "...")]


def test_the_index_has_every_page_and_every_short_example() -> None:
    """The table and the pages are the same examples; only the two of the demonstration are told of elsewhere."""
    sources = {path.name for path in SOURCES.iterdir() if path.suffix in LANGUAGES}

    assert sources - {"jacobi.c", "primes.c"} == ROWS.keys()
    assert {page for page, *_ in ROWS.values()} | {"README"} == {path.stem for path in PAGES.glob("*.md")}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_its_malleable_part_shorter(name: str) -> None:
    """Fewer than 100 lines, fewer than 20 of them malleable, as many as the table says."""
    source = SOURCES / name
    total, malleable = len(lines(source)), len(malleable_lines(source))

    assert ROWS[name] == (source.stem, LANGUAGES[source.suffix], str(total), str(malleable))
    assert total < 100
    assert 2 <= malleable < 20


@pytest.mark.parametrize("name", NAMES)
def test_every_line_that_uses_drom_is_counted(name: str) -> None:
    """No line of code without a mark names the library or what comes from it."""
    source = SOURCES / name
    counted = words_of(bare("\n".join(malleable_lines(source))))
    code = words_of(bare("\n".join(MARK.sub("", line) for line in lines(source))))

    assert [line for line in code if DROM.search(line) and line not in counted] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_the_malleable_part_as_it_is(name: str) -> None:
    """The code on the page is the marked part of the source, line by line."""
    source = SOURCES / name
    shown = re.findall(rf"^```{FENCES[source.suffix]}\n(.*?)^```", text_of(source.stem), re.MULTILINE | re.DOTALL)

    assert len(shown) == 1
    assert words_of(shown[0]) == words_of("\n".join(malleable_lines(source)))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_how_to_run_it_and_shows_an_answer(name: str) -> None:
    """There is a command under drom run, an answer in a block, and less than 80 lines."""
    page = text_of(SOURCES.joinpath(name).stem)
    stem = name.partition(".")[0]

    assert re.search(rf"^```sh\n(?:.*\n)*?.*drom run .*{stem}", page, re.MULTILINE)
    assert re.search(rf"^```\n(?:[^`].*\n)*{stem}: .* ok\n```", page, re.MULTILINE)
    assert page.count("\n") < 80


def test_links_on_the_pages_lead_somewhere() -> None:
    """Files that the pages link to exist."""
    for path in PAGES.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            assert "://" in link or (PAGES / link).exists(), f"{path.name}: {link}"


def test_the_readme_counts_as_the_index_does() -> None:
    """The README's table has every example, with its malleable lines."""
    readme = (PAGES.parent.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\S+)\]\(docs/examples/(\w+)\.md\) \| (\d+) \|", readme, re.MULTILINE)

    assert {name: (page, count) for name, page, count in rows} == {
        name: (row[0], row[-1]) for name, row in ROWS.items()
    }
