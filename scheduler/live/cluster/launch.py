# SPDX-License-Identifier: Apache-2.0
"""The request to an agent to start a job: the program itself, or mpirun with it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.execution import protocol as say
from drom.agent.execution.mpi_hosts import AS_ROOT, mpi_hosts
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.jobs import Job
from drom.scheduler.live.cluster.spec import array_of, in_array, name_of

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.jobs import User
    from drom.scheduler.live.cluster.spec import Spec


def start_of(job: Job, node: str, most: int, source: say.Source | None = None) -> say.Start:
    """Return the message that starts a job on one of its nodes, where it may grow to `most` cores.

    `source` is where the node gets the job's image if it has none.
    """
    spec, launches = job.spec, node == job.launcher
    nodes = [name for name in job.shares if not job.ranks or job.ranks[name]]
    mode = "hold" if not launches else "launch" if spec.by_mpirun else "run"
    return say.Start(
        job=job.number,
        attempt=job.attempt,
        name=name_of(spec),
        cores=job.shares[node],
        most=most if spec.job_class == "malleable" else job.shares[node],
        uid=job.user.uid,
        gid=job.user.gid,
        user=job.user.name,
        argv=mpi_command(job) if mode == "launch" else spec.command,
        env=spec.environment | (AS_ROOT if job.user.uid == 0 else {}) | _of_array(job),
        cwd=spec.folder,
        mode=mode,
        job_class=spec.job_class,
        output=_file(job, spec.output),
        error=_file(job, spec.error) or None,
        input=_file(job, spec.input) or None,
        umask=spec.umask,
        memory=spec.memory,
        tasks=job.tasks_on(node),
        total_tasks=job.tasks,
        nodes=tuple(nodes),
        tasks_on=tuple(map(job.tasks_on, nodes)),
        devices={name: tuple(found) for name, found in job.devices.get(node, {}).items()},
        script=spec.script,
        saving=spec.saving,
        image=job.saves if job.image_on or spec.saving == say.PROGRAM else 0,
        source=source,
        terminal=spec.terminal if launches else "",
        rests=bool(job.ranks) or spec.leaves_nodes,
    )


def _file(job: Job, pattern: str) -> str:
    return in_array(pattern, job.array or job.number, job.index)


def _of_array(job: Job) -> dict[str, str]:
    """Return the variables of a job in an array, with the names of sbatch."""
    if not job.array:
        return {}
    array = array_of(job.spec.array)
    about = {
        "JOB_ID": job.array,
        "TASK_ID": job.index,
        "TASK_COUNT": len(array.indices),
        "TASK_MIN": array.indices[0],
        "TASK_MAX": array.indices[-1],
        "TASK_STEP": array.step,
    }
    return {f"DROM_ARRAY_{name}": str(value) for name, value in about.items()}


def check(spec: Spec, user: User) -> None:
    """Raise SchedulerError for a job with a start message that agents would reject."""
    job = Job(1, spec, user, 0.0, attempt=1, shares={"node": max(1, spec.tasks, spec.threads)})
    try:
        say.to_agent(say.encode(start_of(job, "node", 1)))
    except say.MalformedError as error:
        msg = f"the job cannot be sent to a node: {error}"
        raise SchedulerError(msg) from error


def mpi_command(job: Job) -> tuple[str, ...]:
    """Return the command line that starts the tasks of a job with Open MPI, each under drom-run.

    On a single node, mpirun addresses it as localhost, whatever its name is.
    """
    names = mpi_hosts(tuple(job.shares)) if len(job.shares) > 1 else ["localhost"]
    hosts = ",".join(f"{name}:{job.tasks_on(node)}" for name, node in zip(names, job.shares, strict=True))
    mpirun = ("mpirun", "--host", hosts, "-n", str(job.tasks), "--bind-to", "none")
    return (*mpirun, "drom-run", "--class", job.spec.job_class, "--await", "--", *job.spec.command)
