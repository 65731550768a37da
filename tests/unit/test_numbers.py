"""Tests that a number of a tenant is the same in every command and metric, for one world."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from builders.nodes import a_node
from builders.overview_world import facts
from builders.runs import a_reservation
from builders.service_views import a_service, a_tenant_view
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.units import Millislices, MillisliceSeconds, slices_text
from slicewise.cluster.runtime.console import plain
from slicewise.cluster.slurm.unread_log import UnreadLog
from slicewise.launcher.services.overview import join
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS
from slicewise.slurm_plugin.daemon.metrics import Metrics
from slicewise.slurm_plugin.rules.accounting.overview import (
    OverviewInput,
    tenant_statuses,
    with_those_below,
)
from slicewise.slurm_plugin.rules.explain.headroom import explain
from slicewise.slurm_plugin.rules.explain.headroom import situation as situation_of
from slicewise.slurm_plugin.rules.overview.slices import held_on_loan
from slicewise.slurm_plugin.rules.quota.attainable import highest_limits
from slicewise.slurm_plugin.rules.quota.types import Loan
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
LIMIT = Millislices(5000)
LIMITS = {"borrowing_limit_millislices": LIMIT, "lending_limit_millislices": LIMIT}
POLICY = policy_of(
    tenant("lab", 6000, **LIMITS),
    tenant("vision", 4000, "lab", **LIMITS),
    tenant("nlp", 4000, **LIMITS),
)
"""lab may hold 6 slices, of which 4 are vision's; nlp lends one to vision."""
LOANS = (Loan("nlp", "vision", Millislices(1000)),)
HOLDERS = ("vision", "vision", "lab")
"""Each runs one 1g.10gb."""
NUMBERS = {
    "lab": {
        "nominal": 6000,
        "limit": 7000,
        "in_use": 3000,
        "own_in_use": 1000,
        "lent": 0,
        "borrowed": 1000,
    },
    "vision": {
        "nominal": 4000,
        "limit": 5000,
        "in_use": 2000,
        "own_in_use": 2000,
        "lent": 0,
        "borrowed": 1000,
    },
    "nlp": {
        "nominal": 4000,
        "limit": 3000,
        "in_use": 0,
        "own_in_use": 0,
        "lent": 1000,
        "borrowed": 0,
    },
}
"""What each number is, in millislices."""

JOBS = tuple(
    job(index, JobState.RUNNING, account=name, qos=f"slicewise_{name}", admin_comment="")
    for index, name in enumerate(HOLDERS)
)
NODE = a_node(gpus={"1g.10gb": 14})
INPUTS = world_of(
    ScriptedLedger(shown=POLICY, lent=LOANS).view(0, "UTC"),
    settings(),
    SlurmView(JOBS, (NODE,), ()),
)


def own_names(shown: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of the table among a command's values, without the unit."""
    names = NUMBERS["lab"]
    amounts = {name.removesuffix("_millislices"): value for name, value in shown.items()}
    return {name: value for name, value in amounts.items() if name in names}


@pytest.fixture
async def daemon() -> ClusterState:
    """A daemon that has seen these jobs and compiled these quotas."""
    slurm = ScriptedSlurm(*JOBS)
    slurm.known_nodes = (NODE,)
    state = sync_of(slurm)
    state.set_policy(POLICY, {})
    state.quotas.set_standings(INPUTS.allowed().standings, {})
    await state.turn()
    return state


def test_tenant_list() -> None:
    runs = tuple(
        a_reservation(name, index, reserved_millislice_s=MillisliceSeconds(0))
        for index, name in enumerate(HOLDERS)
    )
    found = tenant_statuses(OverviewInput(POLICY, LOANS, (), runs, {}, None))
    assert {one.tenant: own_names(plain(one)) for one in found} == NUMBERS


def test_why_limits() -> None:
    for name, numbers in NUMBERS.items():
        found = own_names(asdict(explain(name, situation_of(INPUTS))))
        assert found == {key: value for key, value in numbers.items() if key != "own_in_use"}


def test_the_daemon_s_view_and_service_status(daemon: ClusterState) -> None:
    tenants = {one.name: one for one in daemon.view.tenants}
    service = a_service(array_job_id=7, submit_s=0)
    for name, numbers in NUMBERS.items():
        wanted = {key: value for key, value in numbers.items() if key not in {"lent", "borrowed"}}
        assert own_names(tenants[name].model_dump()) == wanted
        services = (service.model_copy(update={"tenant": name}),)
        (one,) = join(
            daemon.view.model_copy(update={"services": services}),
            None,
            "http://gw",
            last_line=lambda *_: "",
        )
        assert own_names(plain(one)["quota"]) == wanted


def test_metrics(daemon: ClusterState) -> None:
    metrics = Metrics()
    admission = AdmissionProcess(Path("a.sock"), "enforce", frozenset(), metrics.decided)
    metrics.watch(settings(), admission, daemon, ALONE, UnreadLog(lambda *_, **__: None))
    found: dict[str, dict[str, float]] = {name: {} for name in NUMBERS}
    for family in metrics.registry.collect():
        number = re.fullmatch(r"slicewise_tenant_(\w+)_millislices", family.name)
        for sample in family.samples if number else ():
            found[sample.labels["tenant"]][number[1]] = sample.value
    highest = {name: shown.pop("highest_limit") for name, shown in found.items()}
    assert found == NUMBERS
    assert highest == {"lab": 10_000, "vision": 9000, "nlp": 9000}


def test_room_is_the_limit_less_what_all_below_hold(daemon: ClusterState) -> None:
    assert {one.name: one.room_millislices for one in daemon.view.tenants} == {
        "lab": 4000,
        "vision": 3000,
        "nlp": 3000,
    }
    before = a_tenant_view(3, name="a", nominal_millislices=2, own_in_use_millislices=1)
    assert (before.effective_limit_millislices, before.room_millislices) == (2, -1)


def test_the_table_s_example_is_this_world() -> None:
    rows: dict[str, list[str]] = {}
    for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7:
            rows[cells[0]] = cells[2:5]
    assert rows.pop("word") == list(NUMBERS)
    del rows["---"]
    standings, highest = INPUTS.allowed().standings, highest_limits(POLICY, 14_000)
    on_loan = with_those_below(POLICY, held_on_loan(facts(*JOBS)))
    shown: dict[str, list[str]] = {key.replace("_", " "): [] for key in NUMBERS["lab"]}
    for name, numbers in NUMBERS.items():
        one = standings[name]
        more = {
            "own nominal": POLICY[name].quota.nominal_millislices,
            "guaranteed": one.guaranteed_millislices,
            "highest limit": highest[name],
            "on loan": on_loan[name],
        }
        for key, amount in {**numbers, **more}.items():
            shown.setdefault(key.replace("_", " "), []).append(slices_text(amount))
        qos = (one.own_qos_limit_millislices, one.borrowed_qos_limit_millislices)
        of_qos = shown.setdefault("own QOS limit, borrowed QOS limit", [])
        of_qos.append("; ".join(map(slices_text, qos)))
    assert rows == shown


def test_the_table_names_each_number() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    metrics = "".join(f"`{name}`" for name in METRICS)
    for name in (*NUMBERS["lab"], "highest_limit"):
        assert f"`slicewise_tenant_{name}_millislices`" in text
        assert f"`slicewise_tenant_{name}_millislices`" in metrics
    for name in re.findall(r"`(slicewise_tenant_\w+)`", text):
        assert f"`{name}`" in metrics
