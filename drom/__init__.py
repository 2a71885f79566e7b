# SPDX-License-Identifier: Apache-2.0
"""drom in Python: `drom.simulate` runs the jobs of a workload under a scheduling policy.

`drom.workload` reads or draws jobs, and `drom.Result` is what a simulation returns; `drom.experiment` makes many
simulations and returns a `drom.Experiment`. The other modules are the command `drom`, which mounts the commands of all
packages; no package imports this one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's: the command `drom` starts with this module
if TYPE_CHECKING:
    from drom.experiments import Experiment, experiment
    from drom.simulation import Result, simulate, workload

    __version__: str

__all__ = ("Experiment", "Result", "experiment", "simulate", "workload")


def __getattr__(name: str) -> object:
    if name == "__version__":
        import dromlib

        return dromlib.__version__
    if name in ("Experiment", "experiment"):
        from drom import experiments

        return getattr(experiments, name)
    if name in __all__:
        from drom import simulation

        return getattr(simulation, name)
    raise AttributeError(f"module 'drom' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
