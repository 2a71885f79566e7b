# SPDX-License-Identifier: Apache-2.0
"""`drom scheduler`: the command that runs the scheduler of a cluster."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from drom.agent.cli.parameters import optional, reader, with_options
from drom.agent.cli.usage import finite, usage_sentence
from drom.agent.control import keys
from drom.agent.control.gate import RemoteEndpoint
from drom.agent.observe.guarded import EXIT_STATUS, LoopError
from drom.agent.observe.log import Log, failure
from drom.agent.system.paths import STATE, default_keys, default_state
from drom.agent.system.sd_notify import ServiceManager
from drom.scheduler.allocation.gaps import STAY, Gaps
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli.scheduler_file import ARGUMENTS, PARTITIONS, SYSTEM_FILE, UsageError, key_of
from drom.scheduler.live.cluster.home_rules import MOST_RULES, HomeRule, parse_rule
from drom.scheduler.live.cluster.homes import first_job, parse_home
from drom.scheduler.live.cluster.settings import LIVE, Settings
from drom.scheduler.live.cluster.spec import LONGEST_REQUEST, parse_memory, parse_time
from drom.scheduler.live.server.etcd import StoreAddress, StoreError, parse_store, read_login
from drom.scheduler.live.server.lease import SHORTEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.partitions import Partition
    from drom.scheduler.live.server.directory import Directory
    from drom.scheduler.live.server.server import Server
    from drom.scheduler.live.server.shared_rows import SharedRows

USUAL = Settings()
TIME = reader(optional(parse_time, 0))
DAY = 86400.0
UNREAD = 2
"""Answers that wait to be read by a user of another node: each may be a long page."""


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """The options of `drom scheduler`."""

    state: Path = typer.Option(
        metavar="DIR",
        help="The folder of the queue.",
        default_factory=default_state,
        show_default="/var/lib/drom of root, or ~/.local/state/drom",
    )
    policy: str = typer.Option("sd", metavar="NAME|FILE", help="The policy, one of those of drom simulate.")
    choices: list[str] | None = typer.Option(None, "--set", metavar="NAME=VALUE", help="A parameter of the policy.")
    name: str = typer.Option(USUAL.name, help="The name of the cluster.")
    agents: str | None = typer.Option(
        None, metavar="HOST:PORT", help="Address to listen on for agents of other nodes; needs keys."
    )
    users: str | None = typer.Option(
        None, metavar="HOST:PORT", help="Address to listen on for users of other nodes; needs keys."
    )
    metrics: str | None = typer.Option(
        None, metavar="ADDRESS:PORT", help="Address for Prometheus metrics; port 0: a free port."
    )
    key_folder: Path | None = typer.Option(
        None, "--keys", metavar="DIR", help="The folder with the keys; default: that of `drom keys`."
    )
    default_time: int = typer.Option(
        f"{USUAL.default_time}s",
        metavar="TIME",
        help="Time limit of jobs submitted without --time.",
        parser=reader(parse_time),
    )
    max_time: int = typer.Option("", metavar="TIME", help="The longest time limit; default: no bound.", parser=TIME)
    silence: float = typer.Option(
        USUAL.silence, metavar="SECONDS", callback=finite, min=1, help="Silence after which an agent counts as gone."
    )
    give_up: float = typer.Option(
        USUAL.give_up,
        metavar="SECONDS",
        callback=finite,
        min=0,
        help="Further time after which the jobs of its node are given up.",
    )
    shrink_within: float = typer.Option(
        USUAL.shrink_within,
        metavar="SECONDS",
        callback=finite,
        min=0.1,
        help="Time within which a job must shrink to make room for another.",
    )
    spawn_within: float = typer.Option(
        USUAL.spawn_within,
        metavar="SECONDS",
        callback=finite,
        min=1,
        help="Time within which an adaptive job must have ranks on a node that it comes back to.",
    )
    save_within: float = typer.Option(
        USUAL.save_within,
        metavar="SECONDS",
        callback=finite,
        min=1,
        help="Time within which a filler must be saved, or is killed.",
    )
    filler_lead: int = typer.Option(
        USUAL.gaps.lead,
        metavar="SECONDS",
        min=1,
        help="Save fillers so long before a reservation begins, or a slot ends; only those never saved before.",
    )
    filler_slot: int = typer.Option(
        "",
        metavar="TIME",
        help="Start regular jobs only every so often, and save all fillers before; unset: at any time.",
        parser=TIME,
    )
    kill_wait: float = typer.Option(
        USUAL.kill_wait,
        metavar="SECONDS",
        callback=finite,
        min=0,
        help="Time from SIGTERM to SIGKILL when a job is ended.",
    )
    keep: int = typer.Option(
        round(USUAL.history / DAY), metavar="DAYS", min=1, max=36500, help="Forget jobs this many days after their end."
    )
    keep_jobs: int = typer.Option(
        USUAL.keep_jobs,
        metavar="N",
        min=1,
        help="The most ended jobs to remember for each user; the oldest are forgotten.",
    )
    max_jobs: int = typer.Option(
        USUAL.max_jobs, metavar="N", min=1, help="The most waiting and running jobs of a user."
    )
    max_running: int = typer.Option(
        USUAL.max_running, metavar="N", min=0, help="The most jobs of a user that run at once; 0: any number."
    )
    max_bytes: int = typer.Option(
        f"{USUAL.max_bytes >> 20}M",
        metavar="SIZE",
        help="The most space in the queue for a user's unfinished jobs.",
        parser=reader(parse_memory),
    )
    max_orders: int = typer.Option(
        USUAL.max_orders, metavar="N", min=1, help="Orders per second that a user may give continuously."
    )
    fair_share: int = typer.Option(
        "",
        metavar="TIME",
        help="Order jobs by what their users have used, which counts half after so long, as 7d; unset: by arrival.",
        parser=TIME,
    )
    durable: bool = typer.Option(
        False, "--durable", help="Make every change survive a loss of power, not only the end of the process."
    )
    store: StoreAddress | None = typer.Option(
        None,
        metavar="etcd://HOST:PORT,...",
        help="Keep the queue in etcd, for several schedulers, below the keys /PREFIX; default: in the folder.",
        parser=reader(parse_store),
    )
    store_ca: Path | None = typer.Option(
        None, metavar="FILE", help="Connect to etcd by TLS, and trust certificates of the authority in this file."
    )
    store_cert: Path | None = typer.Option(None, metavar="FILE", help="The certificate that is shown to etcd.")
    store_key: Path | None = typer.Option(None, metavar="FILE", help="The private key of that certificate.")
    store_login: Path | None = typer.Option(
        None, metavar="FILE", help="A file with NAME:PASSWORD for etcd, which no other user may read."
    )
    lease: int = typer.Option(
        5,
        metavar="SECONDS",
        min=SHORTEST,
        help="Time after which another scheduler on the same etcd takes over from one that is silent.",
    )
    home: str | None = typer.Option(
        None,
        "--home-partition",
        metavar="NAME",
        help="The home partition that this scheduler leads, of several with a scheduler each on the same etcd.",
        parser=reader(optional(parse_home, "")),
    )
    home_rule: list[HomeRule] | None = typer.Option(
        None,
        "--home-rule",
        metavar="NODES=NAME,...",
        help="Which home partition nodes go to whose agents name none, such as 'n[1-40]=p1'; the first rule counts.",
        parser=reader(parse_rule),
    )
    lends: bool = typer.Option(
        True,
        "--lend/--no-lend",
        help="Lend idle nodes to other home partitions for jobs that need more than they have free, and borrow theirs.",
    )
    config: Path | None = typer.Option(
        None, metavar="FILE", help=f"Read options from this file, instead of {SYSTEM_FILE} if that exists."
    )

    @property
    def settings(self) -> Settings:
        """The settings of the cluster."""
        return Settings(
            operators=frozenset({0, os.geteuid()}),
            name=self.name,
            silence=self.silence,
            give_up=self.give_up,
            shrink_within=self.shrink_within,
            spawn_within=self.spawn_within,
            save_within=self.save_within,
            gaps=Gaps(self.filler_slot, self.filler_lead),
            kill_wait=self.kill_wait,
            default_time=self.default_time,
            max_time=self.max_time,
            history=self.keep * DAY,
            keep_jobs=self.keep_jobs,
            max_jobs=self.max_jobs,
            max_running=self.max_running,
            max_bytes=self.max_bytes,
            max_orders=self.max_orders,
            half_life=self.fair_share,
            home=self.home or "",
            home_rules=tuple(self.home_rule or ()),
            lends=self.lends,
        )


CHANGEABLE = {
    "silence",
    "give_up",
    "shrink_within",
    "spawn_within",
    "save_within",
    "kill_wait",
    "default_time",
    "max_time",
    "keep",
    "keep_jobs",
    "max_jobs",
    "max_running",
    "max_bytes",
    "max_orders",
    "fair_share",
    "home_rule",
    "partition",
}
"""Options that can change while a scheduler runs, and the partitions."""


@with_options(SchedulerOptions)
def scheduler(context: typer.Context, options: SchedulerOptions) -> None:
    """Run the scheduler of a cluster: jobs from users, nodes from their agents. SIGHUP reads its file again."""
    from drom.scheduler.engine.compiler import announcement, load_policy
    from drom.scheduler.live.cluster.driver import check
    from drom.scheduler.live.server.agent_server import gate_for_agents
    from drom.scheduler.live.server.server import Server
    from drom.scheduler.live.server.state_folder import open_folder

    state = options.state.absolute()
    if state.exists():
        os.close(open_folder(state))  # before anything is compiled, perhaps into a home directory
    manager = ServiceManager(os.environ, os.getpid())
    found = load_policy(options.policy, [*LIVE.get(options.policy, ()), *(options.choices or [])])
    check(found)
    settings = _settings(options, context.meta[PARTITIONS], found)
    log = Log()
    if words := announcement(found):
        log("compiling", text=words)
    folder = options.key_folder or default_keys()
    gates = (
        RemoteEndpoint(options.users, keys.load(folder), longest=LONGEST_REQUEST, unread=UNREAD, option="--users")
        if options.users
        else None,
        gate_for_agents(options.agents, keys.load(folder)) if options.agents else None,
    )
    rows, directory = _in_etcd(options, log)
    if directory:
        settings = replace(settings, first_job=first_job(directory.homes[directory.home]))
    server = Server(
        state, found, settings, log, durable=options.durable, rows=rows, directory=directory, gates=gates, begins=False
    )
    stop = _serve_metrics(server, options.metrics, log) if options.metrics else lambda: None
    ports = {name: gate.port for name, gate in zip(("users", "agents"), gates, strict=True) if gate}
    about = {"state": state, "policy": found.name, "pid": os.getpid(), **ports}
    try:
        server.run(lambda: log("ready", **about), manager, Reload(context, options, server, log))
    except LoopError as error:
        typer.echo(failure(f"drom: the scheduler ends, and jobs continue: {error}"), err=True)
        raise typer.Exit(EXIT_STATUS) from error
    stop()
    if server.waiting:  # a compilation cannot be stopped, and need not be waited for
        os._exit(0)


def _in_etcd(options: SchedulerOptions, log: Log) -> tuple[SharedRows | None, Directory | None]:
    """Return the rows of the queue if it is in etcd, and the directory if there are home partitions.

    Raises SchedulerError.
    """
    from drom.scheduler.live.server.directory import Directory
    from drom.scheduler.live.server.shared_rows import SharedRows

    if not options.store:
        if options.home:
            raise SchedulerError(
                "home partitions need a queue in etcd: give --store as well, or omit --home-partition."
            )
        return None, None
    address, name = _address(options.store, options, log), _name_of(options.state.absolute())
    if not options.home:
        return SharedRows(address, options.name, name, options.lease), None
    directory = Directory(address, options.name, name, options.home, options.lease)
    try:
        directory.open()
    except StoreError as error:
        raise SchedulerError(f"the store {address} cannot be used: {error}.") from error
    return directory.rows(options.home), directory


def _name_of(state: Path) -> str:
    """Return how others call a scheduler with this folder: by its host, and by the folder unless it is the system's."""
    host = socket.gethostname()
    return host if state == STATE else f"{host}:{state}"


def _address(store: StoreAddress, options: SchedulerOptions, log: Log) -> StoreAddress:
    """Return the address of an etcd with what is needed to connect. Raises SchedulerError."""
    from drom.scheduler.live.server.state_folder import QUEUE

    if (queue := options.state / QUEUE).exists():
        raise SchedulerError(f"the jobs in {queue} would be left out: move it away, or give another folder (--state).")
    if (options.store_cert is None) != (options.store_key is None):
        raise SchedulerError("a certificate and its key belong together: give both --store-cert and --store-key.")
    for path in (options.store_ca, options.store_cert, options.store_key):
        if path and not os.access(path, os.R_OK):
            raise SchedulerError(f"{path} cannot be read: give a certificate or a key in PEM format.")
    login = read_login(options.store_login) if options.store_login else ""
    ca, cert, key = options.store_ca, options.store_cert, options.store_key
    address = replace(store, ca=ca, cert=cert, key=key, login=login)
    if not (login or options.store_cert):
        reason = "who can connect to it can start programs as any user: let it ask for a certificate or a login."
        log("store_unprotected", store=address, reason=reason)
    return address


def _settings(options: SchedulerOptions, partitions: tuple[Partition, ...], policy: Policy) -> Settings:
    """Return the settings of the cluster. Raises SchedulerError for partitions under a policy that cannot heed them."""
    if partitions and not (policy.knows_nodes or policy.divides_nodes):
        equal = f"policy {policy.name} treats all nodes as equal, so that there can be no partitions"
        msg = f"{equal}: remove them from the file, or run the scheduler with --policy sd."
        raise SchedulerError(msg)
    settings = replace(options.settings, partitions=partitions)
    if settings.home_rules and not settings.home:
        raise SchedulerError("--home-rule is for home partitions: give --home-partition as well, or omit it.")
    if len(settings.home_rules) > MOST_RULES:
        msg = f"{len(settings.home_rules)} rules (--home-rule) are too many: write at most {MOST_RULES}."
        raise SchedulerError(msg)
    if settings.gaps.slot and (policy.built_in == "cp" or not policy.divides_nodes):
        msg = f"policy {policy.name} starts jobs at any time: leave out --filler-slot, or choose --policy resources."
        raise SchedulerError(msg)
    if 0 < settings.gaps.slot <= STAY * settings.gaps.lead:
        msg = f"slots of {settings.gaps.slot} s leave no time to fillers: choose a longer --filler-slot."
        raise SchedulerError(msg)
    return settings


class Reload:
    """Reads the options of a running scheduler again: the same command line, and what the file has now."""

    def __init__(self, context: typer.Context, options: SchedulerOptions, server: Server, log: Log) -> None:
        self._context, self._given, self._options = context, _given(context), options
        self._server, self._log = server, log

    def __call__(self) -> None:
        """Apply what can change, and log which options did and which need a restart; a fault changes nothing."""
        try:
            given = self._read()
            differ = sorted(name for name in given if given[name] != self._given[name])
            changed = {name: given[name] for name in differ if name in CHANGEABLE}
            options = replace(self._options, **{name: changed[name] for name in changed if name != "partition"})
            settings = _settings(options, given["partition"], self._server.policy)
        except (SchedulerError, UsageError) as error:
            sentences = str(error) if isinstance(error, SchedulerError) else f"{usage_sentence(error)}."
            for sentence in sentences.splitlines():
                self._log("config_rejected", reason=sentence, kept="the scheduler goes on with what it had")
            return
        if changed and not self._server.configure(settings):
            reason = "the queue cannot be written now: free space on its disk, and send SIGHUP again."
            self._log("config_rejected", reason=reason, kept="the scheduler goes on with what it had")
            return
        self._options = options
        self._given |= changed
        keys = key_of(self._context.command)
        kept = [keys[name] for name in differ if name not in changed]
        self._log("reloaded", changed=",".join(changed) or "none", kept=",".join(kept) or "none")

    def _read(self) -> dict[str, Any]:
        context: Any = self._context
        with context.command.make_context(
            context.info_name, list(context.meta[ARGUMENTS]), parent=context.parent
        ) as again:
            return _given(again)


def _given(context: Any) -> dict[str, Any]:  # noqa: ANN401 - click's context
    """Return the options, and the partitions, in a context."""
    return {**context.params, "partition": context.meta[PARTITIONS]}


def _serve_metrics(server: Server, where: str, log: Log) -> Callable[[], None]:
    from drom.agent.config.addresses import metrics_address
    from drom.scheduler.live.server.metrics import ClusterCollector, serve

    try:
        host, number = metrics_address(where)
        collector = ClusterCollector(lambda: server.clusters, server.counts, server.lock)
        port, stop = serve(collector, host, number, lambda sentence: log("request_failed", reason=sentence))
    except (OSError, ValueError) as error:
        server.close()
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is not ADDRESS:PORT"
        msg = f"cannot serve metrics at {where}: {reason}: choose another --metrics, such as 127.0.0.1:9468."
        raise SchedulerError(msg) from error
    log("metrics", address=host, port=port)
    return stop
