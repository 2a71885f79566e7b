# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from drom.agent.config import sources
from drom.agent.config.options import OPTIONS, TABLES, Options
from drom.agent.config.sources import ConfigError

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
FILE = Path("/f")


def faults(text: str) -> list[str]:
    """Return what is wrong with a file of this text."""
    return sources.parse_file(FILE, text).faults


def written(folder: Path, text: str) -> Path:
    """Return a file of this text."""
    path = folder / "drom.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestFile:
    """What a file says, and what is wrong with it."""

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("grce = 1", "/f:1: there is no option grce: did you mean grace?"),
            ("\n\nxyzzy = 1", "/f:3: there is no option xyzzy: `drom config show` lists all options."),
            ("[rules]\ngrace = 1", "/f:2: there is no option rules.grace: did you mean grace?"),
            ('grace = "soon"', '/f:1: grace = "soon" is not a number of seconds from 0 to 3600.'),
            ("grace = -1.0", "/f:1: grace = -1.0 is not a number of seconds from 0 to 3600."),
            ("grace = {a = 1}", "/f:1: grace = {a = 1} is not a number of seconds from 0 to 3600."),
            ("[exclude]\nusers = [1.5]", '/f:2: exclude.users = [1.5] is not a list of names such as ["a", "b"].'),
            ("[exclude]\nuser = [1]", "/f:2: there is no option exclude.user: did you mean exclude.users?"),
            ("exclude = 1", "/f:1: there is no option exclude: did you mean exclude.users?"),
            ('reserved = "0-"', '/f:1: reserved = "0-" is not a CPU list such as 0-1,8.'),
            ("observe = 1", "/f:1: observe = 1 is not true or false."),
            (f"grace = {'9' * 400}", f"/f:1: grace = {'9' * 400} is not a number of seconds from 0 to 3600."),
            (f"capacity = 0x{'f' * 5000}", f"/f:1: capacity = 0x{'f' * 5000} is not a whole number from 1 to 65536."),
            (f"grace = 1\ncapacity = {'9' * 5000}", "/f:2: a number has thousands of digits: write a smaller one."),
            (
                '[[exclude]]\nusers = ["a"]\n[[exclude]]\nusers = ["b"]',
                "/f:4: exclude.users is set in line 2 already: remove one of the two.",
            ),
            ('metrics = "a b:80"', '/f:1: metrics = "a b:80" is not ADDRESS:PORT: write for example 127.0.0.1:9464.'),
            ("capacity = [\n1,\n2]", "/f:1: capacity = [1, 2] is not a whole number from 1 to 65536."),
            (
                'runtime_dir = "/r"',
                "/f:1: runtime_dir cannot be set in a file: use --runtime-dir or DROM_RUNTIME_DIR.",
            ),
        ],
    )
    def test_a_fault_names_line_and_key(self, text: str, sentence: str) -> None:
        """File, line, key and what would be right, or the nearest key."""
        assert faults(text) == [sentence]

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("grace = 1\nobserve\n", 2),
            ('topology = "pack:2', 1),
            ("# a\n\n[exclude\n", 3),
            ("capacity = [1,\n2", 2),
        ],
    )
    def test_what_is_no_toml_is_told_with_its_line(self, text: str, line: int) -> None:
        """The line is the one the TOML library stumbled over."""
        (fault,) = faults(text)

        assert fault.startswith(f"/f:{line}: this is not TOML (")
        assert fault.endswith("): write key = value.")

    def test_what_is_said_twice_is_named(self) -> None:
        """Key and both lines are told, also of a key in a table, as long as what is before them is TOML."""
        assert faults("grace = 1\n\ngrace = 2\n") == ["/f:3: grace is set in line 1 already: remove one of the two."]
        assert faults('exclude.users = ["a"]\nexclude.users = ["b"]\n') == [
            "/f:2: exclude.users is set in line 1 already: remove one of the two."
        ]
        assert faults("grace =\nunit = 1\nunit = 2\n")[0].startswith("/f:1: this is not TOML (")

    def test_every_fault_is_told(self) -> None:
        """One look finds them all, in the order of the file."""
        assert [fault.split(":")[1] for fault in faults("a = 1\ngrace = 1\nb = 2\ngrace_ = 2")] == ["1", "3", "4"]

    def test_lines_count_through_what_spans_several(self) -> None:
        """Texts and arrays of several lines, comments and tables do not confuse the count."""
        text = 'x = """\ngrace = 1\n"""\n# c\ny = [\n  1, # ]\n]\n[t."a.b"]\nz = 1\n[t]\n\nu.v = 2\n'

        found = [(entry.path, entry.line) for entry in sources.entries(text)]
        assert found == [("x", 1), ("y", 5), ("t.a.b.z", 9), ("t.u", 12)]

    @pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
    def test_only_line_ends_end_lines(self, end: str) -> None:
        """What else Python takes for one may stand in a comment, and hides nothing that follows."""
        file = sources.parse_file(FILE, f"# a{end}b\ngrace = 2.0\ngrce = 1\n")

        assert file.settings["grace"].value == 2.0
        assert file.faults == ["/f:3: there is no option grce: did you mean grace?"]

    def test_long_lists_are_read_at_once(self) -> None:
        """Each statement is tried where it may end, not at each of its lines: the agent waits meanwhile."""
        lines = "".join(f'  "prog{n}",\n' for n in range(3000))
        library = vars(sources)["tomllib"]
        tried = Mock(wraps=library.loads)
        with patch.object(library, "loads", tried):
            file = sources.parse_file(FILE, f"grace = 2.0\n[exclude]\nprograms = [\n{lines}]\n")

        assert len(file.settings["exclude_programs"].value) == 3000  # type: ignore[arg-type]
        assert tried.call_count < 10

    def test_brackets_in_brackets_are_one_sentence(self) -> None:
        """However deep, the agent lives on."""
        assert faults(f"grace = {'[' * 5000}") == ["/f: brackets are nested too deep: write key = value."]

    def test_a_pipe_or_a_device_is_not_waited_for(self, tmp_path: Path) -> None:
        """An agent that reloads reads it in its loop."""
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(ConfigError, match=r": it is not a plain file\.$"):
                sources.read_file(path)
        (tmp_path / "long").write_bytes(bytes(sources.LARGEST + 1))
        with pytest.raises(ConfigError, match=r": it is longer than 1048576 bytes\.$"):
            sources.read_file(tmp_path / "long")
        assert sources.read_file(Path(os.devnull)).faults == []

    def test_a_byte_order_mark_is_passed_over(self, tmp_path: Path) -> None:
        """Some editors begin a file with one."""
        assert sources.read_file(written(tmp_path, "\ufeffgrace = 2.0\n")).settings["grace"].value == 2.0

    @pytest.mark.parametrize("text", ["", "\n", "# nothing\n"])
    def test_an_empty_file_says_nothing(self, text: str) -> None:
        """An empty file is valid and sets nothing."""
        assert sources.parse_file(FILE, text) == sources.File(FILE)

    def test_what_cannot_be_read_is_told(self, tmp_path: Path) -> None:
        """A file that is not there, is a folder, or is not text."""
        none = r"^cannot read the configuration .*/none: No such file or directory: check its name\.$"
        with pytest.raises(ConfigError, match=none):
            sources.read_file(tmp_path / "none")
        with pytest.raises(ConfigError, match=r"^cannot read the configuration .*: it is not a plain file\.$"):
            sources.read_file(tmp_path)
        (tmp_path / "bytes").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match=r"is not UTF-8 text: convert it\.$"):
            sources.read_file(tmp_path / "bytes")


class TestPrecedence:
    """Which source wins."""

    def test_flag_before_environment_before_file_before_default(self, tmp_path: Path) -> None:
        """The strongest source wins, and its name is kept."""
        file = written(tmp_path, "# a\ngrace = 2\ncapacity = 2\nobserve = true\n")
        found = sources.load({"grace": 4.0, "topology": None}, {"DROM_GRACE": "3", "DROM_CAPACITY": "3"}, file)

        assert [(found[name].value, found[name].origin) for name in ("grace", "capacity", "observe", "topology")] == [
            (4.0, "flag --grace"),
            (3, "environment DROM_CAPACITY"),
            (True, f"{file}:4"),
            (None, "default"),
        ]

    def test_a_switch_is_turned_off_by_a_flag(self, tmp_path: Path) -> None:
        """False is a value, not silence."""
        found = sources.load({"observe": False}, {}, written(tmp_path, "observe = true"))

        assert (found["observe"].value, found["observe"].origin) == (False, "flag --observe")

    def test_faults_of_all_sources_are_told(self, tmp_path: Path) -> None:
        """Each names what was given, and where."""
        file = written(tmp_path, "capacity = 0")
        with pytest.raises(ConfigError) as caught:
            sources.load({"metrics": "x"}, {"DROM_GRACE": "soon", "DROM_OBSERVE": "maybe"}, file)

        assert str(caught.value).splitlines() == [
            f"{file}:1: capacity = 0 is not a whole number from 1 to 65536.",
            "--metrics x is not ADDRESS:PORT: write for example 127.0.0.1:9464.",
            "DROM_GRACE=soon is not a number of seconds from 0 to 3600.",
            "DROM_OBSERVE=maybe is not true or false.",
        ]

    def test_an_empty_variable_says_nothing(self) -> None:
        """As if it were unset."""
        assert sources.load({}, {"DROM_GRACE": ""}, None)["grace"].origin == "default"

    def test_the_runtime_directory_is_absolute_and_found_as_programs_find_it(self, tmp_path: Path) -> None:
        """A flag, the variable, or the rule of libdrom."""
        assert sources.load({"runtime_dir": "r"}, {}, None)["runtime_dir"].value == f"{Path.cwd()}/r"
        assert sources.load({}, {"DROM_RUNTIME_DIR": "/r"}, None)["runtime_dir"].value == "/r"
        usual = sources.load({}, {"XDG_RUNTIME_DIR": str(tmp_path)}, None)["runtime_dir"].value
        assert usual in {"/run/drom", f"{tmp_path}/drom"}
        assert (usual == "/run/drom") == (os.geteuid() == 0 or Path("/run/drom/door").exists())

    def test_a_variable_names_the_file(self) -> None:
        """Without it the system's file is read, where there is one."""
        assert sources.default_file({"DROM_CONFIG": "/x"}) == Path("/x")
        assert sources.default_file({}) == (sources.SYSTEM_FILE if sources.SYSTEM_FILE.exists() else None)


class TestDocumentation:
    """What is generated from the options."""

    def test_the_sample_is_the_defaults(self) -> None:
        """docs/drom.toml is what the options say: every line holds, and changes nothing."""
        text = (DOCS / "drom.toml").read_text(encoding="utf-8")
        file = sources.parse_file(FILE, text)

        assert text == sources.sample()
        assert file.faults == []
        assert {name: setting.value for name, setting in file.settings.items()} == {
            option.name: option.default for option in OPTIONS if option.about.in_file and option.default is not None
        }

    def test_the_commented_lines_of_the_sample_hold_too(self) -> None:
        """What has no default is shown by an example that can be used as it is."""
        lines = sources.sample().splitlines()
        examples = [line.removeprefix("# ") for line in lines if re.match(r"# \S+ = |\[", line)]

        assert len(examples) > len(TABLES)
        assert faults("\n".join(examples)) == []

    def test_the_table_is_what_the_options_say(self) -> None:
        """docs/configuration.md holds the generated table."""
        assert sources.markdown() in (DOCS / "configuration.md").read_text(encoding="utf-8")

    def test_defaults_make_options(self) -> None:
        """Nothing said gives the defaults, but for the directory."""
        found = sources.options_of(sources.load({}, {"DROM_RUNTIME_DIR": "/r"}, None))

        assert found == Options(runtime_dir="/r")
