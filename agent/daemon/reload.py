# SPDX-License-Identifier: Apache-2.0
"""Reloads the configuration of a running agent: applies changes at once, and names those that need a new agent.

A file with a fault changes nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.config.exclusions import Exclusions, find_users
from drom.agent.config.options import Options, layout_of, memory_of
from drom.agent.config.sources import SCHEMA_VERSION, ConfigError, options_of
from drom.agent.config.validation import no_core_left, unknown
from drom.agent.errors import ControlError
from drom.agent.policy.site_rules import SiteRules
from drom.agent.system.unmanaged_load import BusyCoreFilter
from drom.agent.system.users import Directory, SilentDirectoryError, group_number

from dromlib.cpulist import format_cpulist, parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.agent.config.exclusions import Users
    from drom.agent.config.sources import Setting, Sources
    from drom.agent.daemon.daemon import Daemon
    from drom.agent.daemon.settings import Settings

RULES = tuple(rule.name for rule in fields(SiteRules) if rule.name != "free")
CHANGEABLE = {
    *RULES,
    "grace",
    "memory",
    "distribution",
    "freeze_file",
    "reserved",
    "exclude_users",
    "exclude_programs",
    "avoid_load",
    "avoid_after",
}
"""Options that can change while an agent runs."""
PATIENCE = 0.25
"""Seconds for which a reload waits for the system's directory of users, as the loop does nothing else meanwhile."""


def settings_from(settings: Settings, options: Options, users: Users | None = None) -> Settings:
    """Return `settings` with the values that `options` has for all that may change while an agent runs.

    `users`: those of ``exclude.users``; None: they are looked up, for as long as that takes.
    """
    users = find_users(options.exclude_users)[0] if users is None else users
    return replace(
        settings,
        grace=options.grace,
        rules=SiteRules(**{name: getattr(options, name) for name in RULES}, free=settings.quotas.free),
        memory=memory_of(options.memory, settings.topology.memory),
        freeze_file=Path(options.freeze_file) if options.freeze_file else None,
        exclude=Exclusions(users, options.exclude_programs),
        avoidance=BusyCoreFilter(options.avoid_load, options.avoid_after),
        layout=layout_of(options.distribution),
    )


class ConfigReloader:
    """Reads the configuration of a running agent again, from `sources` and the environment.

    `start` are the options that it was started with.
    """

    def __init__(self, daemon: Daemon, start: Options, sources: Sources) -> None:
        self._daemon = daemon
        self._start = self._options = start
        self._sources = sources
        self._directory = Directory(PATIENCE, lifetime=0.0)

    def reload(self) -> dict[str, object]:
        """Apply the configuration, log the changes, and return them as JSON. Raises `ControlError`."""
        daemon = self._daemon
        daemon.manager.reloading()
        try:
            return self._take_over(*self._read())
        except (ConfigError, SilentDirectoryError) as error:
            for fault in str(error).splitlines():
                daemon.log("config_rejected", reason=fault, kept="the agent goes on with what it had")
            raise ControlError(f"{error}\nThe agent goes on with what it had.") from error
        finally:
            daemon.manager.ready()

    def _read(self) -> tuple[dict[str, Setting], Users]:
        """Return the settings, and the users of ``exclude.users``. Raises ConfigError or SilentDirectoryError."""
        settings = self._sources.load(os.environ)
        words = options_of(settings).exclude_users
        users = self._directory.ask(find_users, words) if words else ((), [])
        said = {name: setting for name, setting in settings.items() if setting.origin != "default"}
        faults = [*unknown(said, lambda _: users, partial(self._directory.ask, group_number))]
        if "reserved" in said and not self._daemon.usable.availability.left(parse_cpulist(str(said["reserved"].value))):
            faults.append(no_core_left(said["reserved"]))
        if faults:
            raise ConfigError("\n".join(faults))
        return settings, users[0]

    def _take_over(self, settings: Mapping[str, Setting], users: Users) -> dict[str, object]:
        wanted = options_of(settings)
        differ = [name for name in settings if getattr(wanted, name) != getattr(self._options, name)]
        changed = [name for name in differ if name in CHANGEABLE]
        fixed = [settings[name] for name in differ if name not in CHANGEABLE]
        self._options = replace(self._options, **{name: getattr(wanted, name) for name in changed})
        kept = [self._takes_a_new_agent(setting) for setting in fixed]
        if "reserved" in changed:
            kept += self._still_reserved()
        self._apply(changed, users)
        self._daemon.log("reloaded", changed=",".join(changed) or "none", kept=",".join(s.option.path for s in fixed))
        return {
            "schema_version": SCHEMA_VERSION,
            "changed": [
                {"key": settings[n].option.path, "value": settings[n].value, "origin": settings[n].origin}
                for n in changed
            ],
            "kept": kept,
        }

    def _apply(self, changed: list[str], users: Users) -> None:
        daemon, now = self._daemon, time.monotonic()
        daemon.settings = settings = settings_from(daemon.settings, self._options, users)
        # Users are looked up again, whatever has changed.
        daemon.registrar.exclude = daemon.control_handler.candidates.exclude = settings.exclude
        if not changed:
            return
        load = bool({"avoid_load", "avoid_after"} & set(changed))
        daemon.usable.configure(settings, parse_cpulist(self._options.reserved), load=load)
        rules, memory, grace, layout = settings.rules, settings.memory, settings.grace, settings.layout
        daemon.actuator.execute(daemon.node.configure(rules, memory, grace, layout, now))

    def _takes_a_new_agent(self, setting: Setting) -> str:
        has = getattr(self._options, setting.option.name)
        return f"{setting.option.path} stays {_shown(has)}: {_shown(setting.value)} takes a new agent, as by a restart."

    def _still_reserved(self) -> list[str]:
        left = parse_cpulist(self._start.reserved) & ~parse_cpulist(self._options.reserved)
        if not left:
            return []
        return [f"CPUs {format_cpulist(left)} stay reserved: to manage them takes a new agent, as by a restart."]


def _shown(value: Any) -> str:  # noqa: ANN401 - the value of any option
    return "unset" if value in (None, "") else str(value)
