"""Alerts fire while their faults are there and clear after them, by a real Prometheus."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_watch import AlertWatch, faster
from effort import is_ci
from quotas import until_in_force
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.host.process import is_alive

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not is_ci() and shutil.which("prometheus") is None, reason="no Prometheus here"
    ),
]

BOARDS = Path(__file__).parents[2] / "etc" / "grafana" / "dashboards"
SERVICE = """\
[service]
name = "failing"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
min_replicas = 1
max_replicas = 1
memory_mib = 512
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("this model can't start")
"""


@pytest.fixture(scope="module")
def watch(sandbox: Sandbox) -> Iterator[AlertWatch]:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    found = AlertWatch(sandbox)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_time_runs_faster_by_one_factor() -> None:
    assert (
        faster("expr: increase(a[10m]) > 5\nfor: 2m")
        == "expr: increase(a[10s]) > 0.0833333\nfor: 2s"
    )
    assert faster("expr: rate(a[6h]) > 60\nfor: 1h") == "expr: rate(a[360s]) > 60\nfor: 60s"


def kill(sandbox: Sandbox, name: str, number: signal.Signals = signal.SIGKILL) -> None:
    sandbox.kill(name, number)
    until_is(lambda: is_alive(sandbox.state.processes[name]), False)


def test_each_fault_fires_its_alert_and_no_alert_stays(sandbox: Sandbox, watch: AlertWatch) -> None:
    limit = ("sacctmgr", "-i", "modify", "qos", "slicewise_nlp", "set", "grptres=billing=4000")
    sandbox.run("root", limit)
    # The daemon looks at limits each 15 s: meanwhile the launcher and HAProxy end.
    sandbox.stop("launcher")
    watch.until_fires("SlicewiseLauncherAbsent")
    sandbox.restore(print)
    watch.until_clear("SlicewiseLauncherAbsent")
    kill(sandbox, "haproxy")
    watch.until_fires("SlicewiseGatewaySilent")
    sandbox.restore(print)
    watch.until_clear("SlicewiseGatewaySilent")
    watch.until_fired("SlicewiseLimitsByHand")
    kill(sandbox, "postgres", signal.SIGINT)
    watch.until_fires("SlicewiseDaemonLoopFails")
    sandbox.restore(print)
    watch.until_clear("SlicewiseDaemonLoopFails")
    watch.until_clear("SlicewiseLimitsByHand")
    sandbox.stop("daemon")
    watch.until_fires("SlicewiseDaemonAbsent")
    sandbox.restore(print)
    watch.until_clear("SlicewiseDaemonAbsent")
    until_is(lambda: watch.query('ALERTS{alertstate="firing"}'), [])


def test_each_query_of_the_dashboards_is_answered(watch: AlertWatch) -> None:
    """Those of the cluster and of Slicewise's own programs have something to show, too."""
    for file in BOARDS.iterdir():
        board = json.loads(file.read_text(encoding="utf-8"))
        asked = [one["expr"] for panel in board["panels"] for one in panel.get("targets", ())]
        plain = [re.sub(r"\$\w+", ".*", one.replace("$__rate_interval", "10s")) for one in asked]
        filled = board["uid"] in {"slicewise-cluster", "slicewise-internals"}
        wanted = 0.7 * len(plain) if filled else 0
        until(lambda plain=plain, wanted=wanted: sum(map(bool, map(watch.query, plain))) >= wanted)


@pytest.mark.nightly
def test_replicas_that_never_start_fire_an_alert_until_their_service_goes(
    sandbox: Sandbox, watch: AlertWatch
) -> None:
    good, broken = publish_models(sandbox.layout.models), sandbox.layout.models / "never"
    (broken / "tokens" / "1").mkdir(parents=True)
    (broken / "tokens" / "1" / "model.py").write_text(BROKEN)
    shutil.copy(good / "tokens" / "config.pbtxt", broken / "tokens" / "config.pbtxt")
    file = sandbox.layout.home / sandbox.state.users["bob"].name / "failing.toml"
    file.write_text(SERVICE.format(models=json.dumps(str(broken))))
    sandbox.run("bob", ("slicewise", "service", "apply", str(file)), check=False)
    watch.until_fires("SlicewiseServiceStartsFail")
    sandbox.run("bob", ("slicewise", "service", "delete", "nlp/failing"))
    watch.until_clear("SlicewiseServiceStartsFail")
    until(lambda: not watch.fires("SlicewiseServiceSilent"))
