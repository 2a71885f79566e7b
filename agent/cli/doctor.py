# SPDX-License-Identifier: Apache-2.0
"""Checks whether this node is ready for an agent, and the state of the one that runs here."""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.cli import doctor_checks
from drom.agent.cli.doctor_checks import Finding
from drom.agent.config import addresses
from drom.agent.config.options import endpoints
from drom.agent.control.client import order
from drom.agent.daemon import startup
from drom.agent.errors import ControlError
from drom.agent.execution.connection import host_of
from drom.agent.ipc import cpu_locks
from drom.agent.placement.kernel import distributor
from drom.agent.system import proc
from drom.agent.system.proc import Identity
from drom.agent.system.unmanaged_load import LoadMeter
from drom.agent.topology.detect import find_machine
from drom.agent.topology.machine import reserve, usable_cores, warnings_of
from drom.agent.topology.synthetic import TopologyError

from dromlib import layout, native
from dromlib.cpulist import cpus, parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drom.agent.config.options import Options
    from drom.agent.topology.machine import Topology

SCHEMA_VERSION = 1
MOMENT = 0.5
"""Seconds over which the load is measured."""


def examine(options: Options, told: list[Finding], environ: Mapping[str, str]) -> list[Finding]:
    """Return `told`, the findings about the options, followed by those about this node for an agent with them."""
    machine: Topology | None = None
    try:
        machine = find_machine(options.topology, options.emulate)
        topology = _topology(options, environ, machine)
    except TopologyError as error:
        topology = [Finding("topology", "fail", str(error))]
    root, uid = Path("/"), os.geteuid()
    where = Path(options.runtime_dir)
    answer = _ps(where)
    found = [*told, *topology, doctor_checks.frozen_or_not(answer, where)]
    found += _named(options, uid, runs=answer is not None)
    found += [
        doctor_checks.capabilities(root / "proc", uid),
        doctor_checks.descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1], options.capacity),
        doctor_checks.delegation(root, needed=options.enforce == "cpuset"),
        _kernel_cache(options, machine),
        doctor_checks.reachable("library", native.library_path, runs=False),
        doctor_checks.reachable("preload", native.preload_path, runs=False),
        doctor_checks.reachable("launcher", native.run_path, runs=True),
        doctor_checks.reachable("interpreter", lambda: Path(sys.executable), runs=True),
        doctor_checks.runtime_directory(where, uid, _room(options, machine)),
        doctor_checks.storage(where.resolve(), root / "proc"),
        *doctor_checks.competing_programs(root / "proc", root / "dev/shm", root / "etc"),
        *doctor_checks.kernel_features(),
        doctor_checks.futex(),
        doctor_checks.inotify(root / "proc"),
        doctor_checks.clock(root / "sys"),
        doctor_checks.service(
            root, str(Path(sys.executable).with_name("drom")), starts_jobs=options.scheduler is not None
        ),
        doctor_checks.unmanaged(_load(machine, answer)),
    ]
    return found


def _units(options: Options, machine: Topology) -> list[tuple[int, int, int]]:
    """Return what an agent would hand out, as `usable_cores` does."""
    return usable_cores(reserve(machine, parse_cpulist(options.reserved)), options.unit)


def _topology(options: Options, environ: Mapping[str, str], machine: Topology) -> list[Finding]:
    reserved = parse_cpulist(options.reserved)
    mask = sum(row[2] for row in _units(options, machine))
    if not mask:
        return [Finding("topology", "fail", "No CPU may be managed: check affinity, cpuset and the option reserved.")]
    found = [Finding("topology", "warn", warning) for warning in warnings_of(machine, options.unit, reserved)]
    if not found:
        many = mask.bit_count()
        found = [Finding("topology", "ok", f"{many} CPU{'' if many == 1 else 's'} may be managed.")]
    own = None
    with suppress(OSError, ValueError):
        own = int((Path(options.runtime_dir) / "lock").read_text(encoding="utf-8").partition("\n")[0])
    return [*found, doctor_checks.claimed(cpu_locks.cpu_locks_file(environ), mask, own)]


def _ps(where: Path) -> dict[str, Any] | None:
    """Return the answer to `ps` of the agent in a runtime directory, None if no agent answers."""
    try:
        answer: dict[str, Any] = order(where, "ps")
    except ControlError:
        return None
    return answer


def _named(options: Options, uid: int, *, runs: bool) -> Iterator[Finding]:
    """Yield a finding for each file, folder and address that the options name; `runs`: an agent runs here."""
    if options.remote_listen is not None or any(map(host_of, endpoints(options.scheduler or ""))):
        yield _keys(options)
    if options.events_file is not None and options.events_size != "off":
        yield doctor_checks.events_file(options.events_path, uid)
    if options.scheduler is not None:
        yield doctor_checks.spool(options.spool_path, uid)
        yield doctor_checks.fillers(Path("/proc"), uid)
    if options.metrics is not None:
        host, port = addresses.metrics_address(options.metrics)
        bind = partial(doctor_checks.bind_tcp, host, port)
        yield doctor_checks.unguarded(doctor_checks.address("metrics", options.metrics, bind, taken=runs), host)
    if options.remote_listen is not None:
        bind = partial(doctor_checks.bind_zmq, addresses.zmq_address(options.remote_listen))
        yield doctor_checks.address("remote-listen", options.remote_listen, bind, taken=runs)


def _keys(options: Options) -> Finding:
    try:
        return Finding("keys", "ok", f"The keys of this node are in {startup.keys_of(options).folder}.")
    except ControlError as error:
        return Finding("keys", "fail", f"Communication with other nodes is not possible: {error}")


def _kernel_cache(options: Options, machine: Topology | None) -> Finding:
    if machine and not distributor.is_needed(_units(options, machine), options.unit):
        return Finding("kernel cache", "ok", "No distribution kernel is needed: all cores lie in one memory domain.")
    if distributor.is_cached():
        return Finding("kernel cache", "ok", "The distribution kernel is compiled for this processor.")
    text = "The distribution kernel is not compiled for this processor: an agent compiles it at its start, in half a "
    text += "minute in the background; if the cache cannot be written, set NUMBA_CACHE_DIR."
    return Finding("kernel cache", "warn", text)


def _load(machine: Topology | None, answer: dict[str, Any] | None) -> dict[int, float]:
    """Measure for `MOMENT` the share of each online CPU that programs use, without the tasks in `answer` (of `ps`)."""
    pids = [row["pid"] for row in (answer or {"tasks": []})["tasks"]]
    tasks = [Identity(pid, start) for pid in pids if (start := proc.start_time(pid)) is not None]
    meter = LoadMeter()
    meter.look(time.monotonic(), tasks)
    time.sleep(MOMENT)
    load = meter.look(time.monotonic(), tasks)
    return {cpu: load.get(cpu, 0.0) for cpu in cpus(machine.online if machine else 0)}


def _room(options: Options, machine: Topology | None) -> int:
    bits = max(64, machine.online.bit_length() if machine else 0)
    return layout.HEADER_SIZE + options.capacity * layout.slot_size((bits + 63) // 64 * 64)


def to_json(found: list[Finding]) -> dict[str, object]:
    """Return the value of ``drom doctor --json``."""
    rows = [{"check": one.name, "state": one.state, "text": one.text} for one in found]
    return {"schema_version": SCHEMA_VERSION, "checks": rows}
