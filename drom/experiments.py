# SPDX-License-Identifier: Apache-2.0
"""The Python interface of experiments: `drom.experiment` and its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.config.sources import toml
from drom.scheduler.cli.messages import say
from drom.scheduler.cli.progress import Bar, progress_stream
from drom.scheduler.experiments.design import Source, parse, read_source
from drom.scheduler.experiments.effects import lines, note, table_of
from drom.scheduler.experiments.experiment import run_experiment, write_outcome
from drom.workloads.frames import make_frame

if TYPE_CHECKING:
    import pandas as pd

    from drom.scheduler.experiments.experiment import Outcome
    from drom.simulation import FileName


class Experiment:
    """The results of an experiment. Its text is the table that `drom experiment` prints."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def __repr__(self) -> str:
        design = self._outcome.design
        return "\n".join([*lines(design, self._outcome.rows), note(design), *self._outcome.faults])

    @property
    def table(self) -> pd.DataFrame:
        """A row for each metric and combination of levels: means over the seeds, and changes from the baseline."""
        return make_frame(table_of(self._outcome.rows))

    @property
    def runs(self) -> pd.DataFrame:
        """A row for each run: its levels, its seed, its metrics."""
        return make_frame(self._outcome.runs)

    @property
    def faults(self) -> list[str]:
        """Why runs failed, a sentence each; their values are missing."""
        return list(self._outcome.faults)


def experiment(
    source: FileName | Mapping[str, Any],
    *,
    out: FileName | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> Experiment:
    """Simulate all combinations of the levels of an experiment with all seeds, as `drom experiment` does.

    Args:
        source: The path of a file in TOML, or the same as a mapping, such as `{"workload": {"model": "lublin"},
            "simulation": {"nodes": 64, "policy": ["fcfs", "easy"]}}`.
        out: The folder of the results, by default the name of the file, or `experiment`. Runs that it has are not made
            again.
        jobs: Simulations to run at once, by default one for each CPU.
        progress: Whether a long experiment shows its progress, in a notebook or on a terminal.

    Raises SchedulerError or ConfigError, with a sentence that says what to do.
    """
    if isinstance(source, Mapping):
        given = Source(source, toml(source), lambda key: f"the experiment, {key}")
        folder = Path(out or "experiment")
    else:
        given = read_source(Path(source))
        folder = Path(out or Path(source).stem)
    design = parse(given)
    bar = Bar(progress_stream(), "simulating") if progress else None
    try:
        outcome = run_experiment(design, given.where, folder, jobs, say=say, show=bar.show if bar else lambda _: None)
    finally:
        if bar:
            bar.clear()
    write_outcome(outcome, folder, given.text, "drom.experiment")
    return Experiment(outcome)
