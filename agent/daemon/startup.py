# SPDX-License-Identifier: Apache-2.0
"""Starts an agent from the command line: placement kernel, daemon, metrics, and the errors of a start."""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.config.addresses import metrics_address, zmq_address
from drom.agent.config.exclusions import find_users
from drom.agent.config.options import Options, endpoints, resources_of
from drom.agent.config.sources import Sources
from drom.agent.control.access import Operators, UserQuotas
from drom.agent.enforcement import cpusets
from drom.agent.errors import ControlError
from drom.agent.ipc import runtime_dir
from drom.agent.ipc.cpu_locks import cpu_locks_file
from drom.agent.observe.event_log import EventLog
from drom.agent.observe.guarded import EXIT_STATUS, LoopError, place
from drom.agent.observe.log import Log, failure
from drom.agent.system import python_command
from drom.agent.system.paths import default_keys
from drom.agent.system.python_command import SERVE
from drom.agent.system.sd_notify import ServiceManager
from drom.agent.system.users import group_number
from drom.agent.text import parse_size
from drom.agent.topology.detect import find_machine
from drom.agent.topology.machine import reserve, warnings_of
from drom.agent.topology.sysfs import read_topology

from dromlib.cpulist import parse_cpulist
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from drom.agent.control.gate import RemoteEndpoint
    from drom.agent.control.keys import Keys
    from drom.agent.daemon.daemon import Daemon
    from drom.agent.enforcement.memory_limits import MemoryLimits
    from drom.agent.execution.executor import Membership
    from drom.agent.placement.kernel.background import CompiledKernel
    from drom.agent.topology.machine import Topology


def exec_agent(options: Options, sources: Sources) -> None:
    """Check the machine, then replace this process by the agent, which does not load the command line's libraries.

    Raises `TopologyError` or `ControlError` with a sentence.
    """
    find_machine(options.topology, options.emulate)
    file = describe(options, sources)
    shown = ("--runtime-dir", str(Path(options.runtime_dir).absolute()))
    try:
        os.execv(sys.executable, python_command.drom(SERVE, str(file), *shown))  # noqa: S606
    except OSError as error:
        python = sys.executable or "this Python"
        msg = f"this user cannot run {python} ({error.strerror}): use one in a folder that this user may read."
        raise ControlError(msg) from error


def describe(options: Options, sources: Sources) -> int:
    """Return the descriptor of a file with an agent's options, which the agent inherits: `ps` does not show them."""
    file = os.memfd_create("drom-options", 0)
    os.write(file, json.dumps([asdict(part) for part in (options, sources)]).encode())
    return file


def main(descriptor: str) -> None:
    """Run the agent with the options that `describe` has written to the file of this descriptor."""
    sys.excepthook = _crashed
    # An agent does no linear algebra and has no settings file of numba, which would load these where installed.
    sys.modules.update(dict.fromkeys(("scipy", "yaml")))  # type: ignore[arg-type]
    with open(int(descriptor), "rb") as file:
        file.seek(0)
        values: dict[str, Any]
        values, sources = json.load(file)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    options = Options(**values)
    _keep_descriptors()
    try:
        run(find_machine(options.topology, options.emulate), options, Sources(**sources))
    except LoopError as error:
        sys.stderr.write(failure(f"drom: the agent ends, and programs continue on their CPUs: {error}") + "\n")
        sys.exit(EXIT_STATUS)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        sys.exit(failure(f"drom: the agent cannot continue: {what}{os.strerror(error.errno or 0)} ({place(error)})."))
    except DromError as error:
        sys.exit(failure(f"drom: {error}"))


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(failure("".join(traceback.format_exception(kind, error, trace)).rstrip()) + "\n")


def _keep_descriptors() -> None:
    """Make inherited descriptors above 2 non-inheritable, so that no child of the agent gets them."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2:
            with suppress(OSError):  # that of the list itself
                os.set_inheritable(int(path.name), False)


def run(machine: Topology, options: Options, sources: Sources) -> None:
    """Run an agent until it has to stop. Raises `DromError` with a sentence if it cannot start."""
    reserved = parse_cpulist(options.reserved)
    machine = reserve(machine, reserved)
    if not machine.allowed:
        raise ControlError("no CPU may be managed here: check this process's affinity and cpuset, and --reserved.")
    directory = Path(options.runtime_dir)
    with suppress(OSError):  # it does not exist yet, or its creation says what is wrong
        runtime_dir.check(directory)  # before anything is made, perhaps in a home directory
    log = Log(form=options.log_format)
    manager = ServiceManager(os.environ, os.getpid())
    from drom.agent.daemon.daemon import Daemon
    from drom.agent.daemon.reload import ConfigReloader, settings_from
    from drom.agent.daemon.settings import Settings
    from drom.agent.placement.kernel.background import CompiledKernel

    unit = _unit(directory, options.unit, log)
    for warning in warnings_of(machine, unit, reserved):
        log("topology_unclear", reason=warning)
    for name in find_users(options.exclude_users)[1]:
        log("user_unknown", reason=f"{name} is not a user of this node: check exclude.users.")
    masters = _masters(options)
    gate = _gate(options, log)
    settings = Settings(
        directory,
        machine,
        capacity=options.capacity,
        observe=options.observe,
        unit=unit,
        claims=cpu_locks_file(os.environ),
        masters=masters,
        cpusets=None if machine.emulated else cpusets.build(directory, raised=options.enforce == "cpuset"),
        quotas=UserQuotas(options.users_max_tasks, frozenset({0, os.geteuid()})),
        gate=gate,
        membership=_membership(options, log),
        reread=None if machine.emulated else lambda: _reread(machine, reserved, words=bool(options.topology)),
        history=_history(options),
        slurm_limits=options.slurm_limits,
        slurm_comments=options.slurm_comments,
        ignore_slurm=options.ignore_slurm,
    )
    placer = CompiledKernel(machine, unit)
    try:
        try:
            daemon = Daemon(settings_from(settings, options), placer, log, manager)
        except OSError as error:
            where, reason = error.filename or directory, os.strerror(error.errno or 0)
            raise ControlError(f"{where}: {reason}: check the runtime directory.") from error
        daemon.reload = ConfigReloader(daemon, options, sources).reload
        _load_when_compiled(daemon, placer, log)
        stop = _serve_metrics(daemon, options.metrics, log)
        mode = "observing" if options.observe else "emulating" if machine.emulated else "managing"
        log_ready = partial(log, "ready", mode=mode, runtime_dir=directory, cores=len(daemon.rows), pid=os.getpid())
        daemon.run(log_ready)
        stop()
    finally:
        placer.close()


def _masters(options: Options) -> Operators:
    if options.users_masters is None:
        return Operators.here()
    group = group_number(options.users_masters)
    if group is None:
        raise ControlError(f"there is no group {options.users_masters} here: check users.masters.")
    return Operators.here(group, options.users_masters)


def _gate(options: Options, log: Log) -> RemoteEndpoint | None:
    """Return the receiver of orders from other nodes, None if not configured. Raises `ControlError`."""
    if options.remote_listen is None:
        return None
    from drom.agent.control import gate as remote

    own = keys_of(options)
    gate = remote.RemoteEndpoint(zmq_address(options.remote_listen), own)
    log("remote", address=metrics_address(options.remote_listen)[0], port=gate.port, keys=own.folder)
    return gate


def _membership(options: Options, log: Log) -> Membership | None:
    """Return the node's membership in a scheduler's cluster, None if it has none. Raises `ControlError`."""
    if options.scheduler is None:
        return None
    if options.observe:
        raise ControlError("an agent that only observes starts no jobs: omit --observe or --scheduler.")
    from drom.agent.checkpoint.images import Quota
    from drom.agent.execution import connection
    from drom.agent.execution.executor import Membership
    from drom.agent.execution.fillers import ImageFolder

    addresses = endpoints(options.scheduler)
    own = keys_of(options) if any(map(connection.host_of, addresses)) else None
    node, resources = options.node or socket.gethostname(), resources_of(options.resources)
    quota = Quota(parse_size(options.image_quota), parse_size(options.image_user_quota))
    images = ImageFolder(options.images_path, quota)
    limits = _memory_limits(options, log)
    about = (options.spool_path, resources, options.features, own, limits, images, options.home_partition or "")
    return Membership(addresses, node, *about)


def _memory_limits(options: Options, log: Log) -> MemoryLimits | None:
    """Return what limits the memory of jobs, None if nothing does, which is logged with the reason."""
    if options.memory_limits == "off":
        return None
    from drom.agent.enforcement import memory_limits

    try:
        return memory_limits.find(Path(options.runtime_dir), confined=options.enforce == "cpuset")
    except ControlError as error:
        log("memory_not_limited", reason=f"jobs may use more memory than they ask for (--mem): {error}")
        return None


def keys_of(options: Options) -> Keys:
    """Return this agent's keys. Raises `ControlError`."""
    from drom.agent.control import keys

    return keys.load(Path(options.remote_keys) if options.remote_keys else default_keys())


def _reread(start: Topology, reserved: int, *, words: bool) -> Topology:
    """Return the machine's present state; with `words`, the given topology reduced to its present CPUs."""
    now = reserve(read_topology(), reserved)
    return replace(start, allowed=start.allowed & now.allowed, quota=now.quota) if words else now


def _history(options: Options) -> EventLog | None:
    if options.events_size == "off":
        return None
    alone = options.events_path.parent == Path(options.runtime_dir)
    return EventLog(options.events_path, parse_size(options.events_size), alone=alone)


def _unit(directory: Path, wanted: str, log: Log) -> str:
    """Return the allocation unit: the wanted one or, while tasks live, that of the agent that started them."""
    from drom.agent.daemon.recovery import unit_in_use

    unit = unit_in_use(directory) or wanted
    if unit != wanted:
        log(
            "unit_kept",
            reason=f"running tasks are counted in {unit}s: start again with {wanted}s once they have ended.",
        )
    return unit


def _load_when_compiled(daemon: Daemon, placer: CompiledKernel, log: Log) -> None:
    """Make the loop load the placement kernel's machine code once the compiling process has ended."""
    if placer.compiler is None:
        if placer.warning:
            log("compile_failed", reason=f"distribution runs uncompiled and slowly: {placer.warning}")
        return
    log("compiling", pid=placer.compiler.pid, meanwhile="placements are computed in plain Python")

    def load() -> None:
        daemon.unwatch(pidfd)
        os.close(pidfd)
        placer.load()
        if placer.warning:
            log("compile_failed", reason=placer.warning)
        else:
            log("compiled")

    pidfd = os.pidfd_open(placer.compiler.pid)
    daemon.watch(pidfd, load)


def _serve_metrics(daemon: Daemon, where: str | None, log: Log) -> Callable[[], None]:
    if where is None:
        return lambda: None
    from drom.agent.observe import site

    address = metrics_address(where)
    try:
        port, stop = site.serve(daemon, *address)
    except OSError as error:
        daemon.cancel_start()
        reason = error.strerror or error  # os.strerror does not know the error of a name without an address
        msg = f"cannot serve metrics on {address[0]}:{address[1]}: {reason}: choose another --metrics."
        raise ControlError(msg) from error
    log("metrics", address=address[0], port=port)
    return stop
