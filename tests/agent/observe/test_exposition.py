# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from drom.agent.observe.exposition import Exposition, Only
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

FORMATS = ("", "text/plain;version=1.0.0", "application/openmetrics-text;version=1.0.0")
NAMES = st.text(st.characters(codec="utf-8"), max_size=3)
SERIES = st.dictionaries(st.tuples(NAMES, NAMES), st.sampled_from([0.0, 1.0, 2.5, float("nan"), float("inf")]))


def families(series: dict[tuple[str, str], float]) -> list[Metric]:
    """Return a family of each kind, the gauges twice."""
    gauge, other = (GaugeMetricFamily(name, "Says\nmuch.", labels=["job", "socket"]) for name in ("g", "other"))
    counter = CounterMetricFamily("c", "Counts.", labels=["job", "socket"])
    for family in (gauge, other, counter):
        for labels, value in series.items():
            family.add_metric(labels, value)
    buckets = [("1", float(len(series))), ("+Inf", float(len(series)))]
    return [gauge, counter, HistogramMetricFamily("h", "Times.", buckets=buckets, sum_value=1.0), other]


@pytest.mark.parametrize("accept", FORMATS)
@given(scrapes=st.lists(SERIES, max_size=3))
def test_every_scrape_is_what_the_library_writes(accept: str, scrapes: list[dict[tuple[str, str], float]]) -> None:
    """Whatever changes, comes and goes in between, with any text in the labels, in every format."""
    encode, kind = choose_encoder(accept)
    mine = Exposition(accept)

    for series in scrapes:
        assert mine.text(families(series)) == encode(Only(*families(series)))
    assert mine.kind == kind


def test_versions_that_cannot_be_are_the_usual_format() -> None:
    """Anybody may ask for them."""
    for accept in (
        "application/openmetrics-text;version=abc",
        "text/plain;version=1.x",
        "application/openmetrics-text;version=",
    ):
        assert Exposition(accept).kind.startswith(
            ("text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0")
        )


def test_only_lines_of_new_series_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand jobs one changes and one is new: one line goes through the library at the next scrape."""
    encode, kind = choose_encoder("")
    written: list[str] = []

    def noting(collector: Only) -> bytes:
        written.extend(f"{s.name} {s.labels['job']}" for family in collector.collect() for s in family.samples)
        return encode(collector)

    monkeypatch.setattr("prometheus_client.exposition.choose_encoder", lambda _: (noting, kind))
    mine = Exposition("")

    def scrape(cpus: dict[str, int]) -> bytes:
        family = GaugeMetricFamily("drom_job_cpus", "CPUs.", labels=["job"])
        for job, count in cpus.items():
            family.add_metric([job], count)
        written.clear()
        return mine.text([family])

    first = {f"job{n}": n for n in range(1000)}
    scrape(first)
    assert len(written) == 1000
    text = scrape({**first, "job7": 8, "new": 1})

    assert written == ["drom_job_cpus new"]
    assert text.splitlines()[2 + 7] == b'drom_job_cpus{job="job7"} 8.0'
