# SPDX-License-Identifier: Apache-2.0
"""What contrib/ has for Prometheus and Grafana, with a real Prometheus that scrapes a real agent."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.agents import SECONDS, SERVES_METRICS, programs, start_agent, wait_until
from tests.support.clusters import cluster
from tests.support.paths import ROOT
from tests.support.prometheus import tool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system
CONTRIB = ROOT / "contrib"
DASHBOARD = json.loads((CONTRIB / "grafana" / "drom.json").read_text(encoding="utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
VARIABLES = {"$instance": ".*", "$__rate_interval": "1m"}


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, what: str, **parameters: str) -> Any:
        """Return the data of an answer of its API; None while it cannot answer."""
        with contextlib.suppress(OSError):
            query = urllib.parse.urlencode(parameters)
            with urllib.request.urlopen(f"{self._address}{what}?{query}", timeout=SECONDS) as answer:
                return json.load(answer)["data"]
        return None

    def series(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now."""
        data = self.ask("query", query=expression)
        return [] if data is None else list(data["result"])


def listens(pid: int) -> int | None:
    """Return the port that a process listens at."""
    found = [one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.status == "LISTEN"]
    return found[0] if found else None


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with our configuration, which scrapes an agent with two jobs that share its CPUs, and a scheduler."""
    server, folder = tool("prometheus"), tmp_path_factory.mktemp("prometheus")
    options = ("--emulate", "pack:2 core:2", *SERVES_METRICS)
    (folder / "cluster").mkdir()
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(cluster(folder / "cluster", nodes=1))
        agent = stack.enter_context(start_agent(folder, *options))
        start = stack.enter_context(programs(folder / "programs"))
        for job in ("a", "b"):
            start.start(*agent.run("--job", job, "--", "sleep", "1000"))
            agent.await_log(f"event=task_started job={job}")
        wait_until(lambda: {row["applied"] for row in agent.tasks().values()} == {"0-1", "2-3"}, agent.tasks)
        shutil.copy(CONTRIB / "drom.rules.yml", folder)
        port = agent.await_log(r"event=metrics .*port=(\d+)")[1]
        here.await_state(here.submit("--output", "none", "--", "sleep", "inf"), "running")
        text = (CONTRIB / "prometheus.yml").read_text(encoding="utf-8")
        text = text.replace(":9464", f":{port}").replace(":9468", f":{here.metrics_port}")
        assert text.count("15s") == 2
        (folder / "prometheus.yml").write_text(text.replace("15s", "1s"), encoding="utf-8")
        started = start.start(
            server,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0",
        )
        yield Prometheus(wait_until(lambda: listens(started.pid), started.show))


def test_prometheus_scrapes_the_agent_and_the_scheduler(prometheus: Prometheus) -> None:
    """The targets are up, and what the first says is what the agent has."""
    for job in ("drom", "drom-scheduler"):
        wait_until(lambda: prometheus.series(f'up{{job="{job}"}} == 1'), lambda: prometheus.ask("targets"))  # noqa: B023
    wait_until(lambda: len(prometheus.series("drom_job_cpus")) == 2, lambda: prometheus.series("drom_job_cpus"))
    held = {(one["metric"]["job_name"], one["value"][1]) for one in prometheus.series("drom_job_cpus")}

    assert held == {("a", "2"), ("b", "2")}
    assert [target["lastError"] for target in prometheus.ask("targets")["activeTargets"]] == ["", ""]


def test_its_rules_can_be_evaluated(prometheus: Prometheus) -> None:
    """Every rule is healthy on real data, and on a node that is well none fires."""

    def rules() -> list[dict[str, Any]]:
        return [rule for group in (prometheus.ask("rules") or {"groups": []})["groups"] for rule in group["rules"]]

    wait_until(lambda: rules() and all(rule["health"] == "ok" for rule in rules()), rules)
    assert {rule["state"] for rule in rules() if rule["type"] == "alerting"} == {"inactive"}
    wait_until(lambda: prometheus.series("instance:drom_cpus_assigned:ratio == 1"), rules)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_of_the_dashboard_gives_series(prometheus: Prometheus, expression: str) -> None:
    """Nothing in the dashboard is misspelled: each expression finds data of the agent or of the scheduler."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression

    wait_until(lambda: prometheus.series(expression), lambda: f"nothing for {expression}")


def test_the_dashboard_shows_all_that_is_told(prometheus: Prometheus) -> None:
    """No metric is left out but what only some configurations have; none that does not exist is asked for."""
    for name in ("drom_build_info", "drom_scheduler_jobs"):
        wait_until(lambda: prometheus.series(name), lambda: prometheus.ask("targets"))  # noqa: B023
    there = {name for name in prometheus.ask("label/__name__/values") if name.startswith("drom_")}
    there = {re.sub(r"_(bucket|sum|count)$", "", name) for name in there}
    shown = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\bdrom_\w+", " ".join(EXPRESSIONS))}

    assert shown == there - {"drom_cpu_unmanaged_ratio"}


def test_promtool_has_nothing_to_say() -> None:
    """Configuration and rules are right, and the rules do what their tests say."""
    for words in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", *(file.name for file in CONTRIB.glob("*.rules.yml"))],
        ["test", "rules", "drom.rules.test.yml"],
    ):
        done = subprocess.run([tool("promtool"), *words], cwd=CONTRIB, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    """Each has a case in which it fires."""
    rules, tests = ((CONTRIB / name).read_text(encoding="utf-8") for name in ("drom.rules.yml", "drom.rules.test.yml"))
    alerts = set(re.findall(r"alert: (\w+)", rules))

    assert alerts == set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", tests))


def test_every_alert_has_a_runbook() -> None:
    """Its address is a section of the page of operations, which is installed where the address says."""
    text = (CONTRIB / "drom.rules.yml").read_text(encoding="utf-8")
    page = (CONTRIB.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"alert: (\w+)(?:(?!alert:).)*?runbook_url: (\S+)", text, re.DOTALL))

    assert list(found) == re.findall(r"alert: (\w+)", text)
    assert {name: address.partition("#")[2] for name, address in found.items()} == {
        name: name.lower() for name in found
    }
    assert re.findall(r"^### (Drom\w+)$", page, re.MULTILINE) == list(found)
    assert {address.partition("#")[0] for address in found.values()} == {"file:///opt/drom/share/drom/operations.md"}
    assert not re.search(r"\b(exported_job|drom_cpu_utilisation_ratio)\b", text + " ".join(EXPRESSIONS))
