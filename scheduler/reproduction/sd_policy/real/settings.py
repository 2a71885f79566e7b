# SPDX-License-Identifier: Apache-2.0
"""The parameters of the runs of workload 5. They were fixed before the first run and not changed by the results.

The paper (ICPP 2019, Section 4.4) gives the shares of five applications, words for their sizes, times and use of the
machine (Table 2), and the machine: 49 nodes of 48 cores, jobs of at most 16 nodes. The rest is a choice:

- times: the words as spans of seconds, uniform in the logarithm, so that 2000 jobs are about the paper's work (it had
  159,313 s on 49 nodes); sizes, arrivals and how far requests are off are those of the Cirne-like model, `FIT`;
- `LOAD` 3: all jobs come within a third of the time that the machine needs for them, as the paper's mean response is a
  third of its makespan;
- speed-up: no curve of an application is given. Downey's model, with an average parallelism and a variance for each.
"""

from __future__ import annotations

from typing import NamedTuple

FIT = "ctc"
LOAD = 3.0
SEEDS = (1, 2, 3, 4, 5)
LONGEST_REQUEST = 48 * 3600
"""Seconds: the limit of the paper's queue."""
LARGEST = 16
"""Nodes of the largest job on 49 nodes."""
TIMES = {"small/med": (300, 1200), "small-high": (300, 3600), "high": (1200, 3600)}
"""Spans of full-speed run times by the words of Table 2, seconds."""
SMALL_NODES = 2
"""Nodes of the largest job of an application whose sizes are small."""


class Role(NamedTuple):
    """The program in place of an application of Table 2.

    `program` and `options` are the example that runs on real cores, `unit` its option for the amount of work, which
    grows as the time to the power of `exponent`. `parallelism` and `sigma` are Downey's, per node of 48 cores.
    """

    program: str
    options: tuple[str, ...]
    unit: str
    sizes: tuple[int, int]
    """Two amounts of work, of which the time is measured before the first run."""
    exponent: float
    parallelism: float
    sigma: float


ROLES = {
    "PILS": Role("primes", (), "--below", (4_000_000, 12_000_000), 1 / 1.4, 48, 0.0),
    "STREAM": Role("stream", ("--size", "4000000"), "--sweeps", (24, 120), 1, 32, 0.0),
    "CoreNeuron": Role("jacobi", ("--size", "1500"), "--iterations", (300, 1500), 1, 48, 0.5),
    "NEST": Role("numpy_blas.py", ("--size", "700"), "--steps", (20, 100), 1, 48, 1.0),
    "Alya": Role("mpi_openmp", ("--size", "1000000"), "--steps", (400, 2000), 1, 48, 1.0),
}
"""By application: compute-bound, memory-bound (all bandwidth with two thirds of the cores), and three simulations."""
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
"""The environment of programs on real cores: waiting threads sleep, as the machine may have other work."""


class Scale(NamedTuple):
    """A machine, and the conversion of seconds of the workload to seconds of a run."""

    name: str
    title: str
    nodes: int
    cores: int
    jobs: int
    compression: float
    """Seconds of the workload in a second of the run."""
    patience: float
    """The time limit of a job, without `MARGIN`, as a multiple of its requested time."""
    seeds: int
    largest: int
    """Nodes of the largest job."""
    load: float = LOAD


MARGIN = 2
"""Seconds of the run by which each limit is longer, for starting and ending."""
CORES = Scale("cores", "real programs on one node of 2 real cores", 1, 2, 60, 600.0, 2.0, 5, 1)
NODES = Scale("nodes", "49 nodes of 2 x 24 emulated cores", 49, 48, 2000, 36.0, 1.0, 1, LARGEST)
"""The shortest job takes 300 / 36 = 8.3 s: a hundred times the 70 ms that a job of one node was seen to lose."""
SLURM = Scale("slurm", "a real Slurm on 16 nodes of 48 emulated cores", 16, 48, 200, 60.0, 1.0, 3, 5, 4.5)
"""The shortest job takes 5 s, five of Slurm's cycles of 1 s; a minute, the unit of Slurm's time limits, is an hour of
the workload. The largest job has a third of the nodes, as on 49 nodes. So few jobs come within the model's first night,
when few come: with a load of 4.5 that is a third of the time that the machine needs for them, as with 2000 jobs."""
SCALES = {scale.name: scale for scale in (CORES, NODES, SLURM)}
POLICIES = {"static": ("--policy", "slurm"), "sd": ("--policy", "sd")}
"""Options of `drom scheduler`: its defaults, thus MAX_SLOWDOWN 10 and SharingFactor 0.5."""
MAX_SLOWDOWN = 10.0
LEVELS = {"level-0": "Slurm's backfill", "level-1": "shared nodes, agents", "level-2": "drom slurm"}
"""The runs on Slurm: with agents alone, with shared nodes and the plugin, and with the defaults of `drom slurm`."""
REHEARSED = POLICIES | {"feedback": ("--policy", "sd", "--set", "feedback=1")}
"""The rehearsed policies; feedback only on the curves of the settings, as SD-Policy expects the others anyway."""
