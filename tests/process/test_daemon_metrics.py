"""Tests what Prometheus reads from the daemon."""

import time
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from builders.tenants import policy_of, tenant
from free_ports import free_port
from metric_checks import breaches, lint, needs_promtool
from prometheus_client.parser import text_string_to_metric_families
from stand_ins.scripted import ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gpus.energy import EnergyMeasure, Split
from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.unread import RECORDS, Unread
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.energy_messages import (
    EnergyPostRequest,
    ToldHour,
    ToldPart,
    ToldPower,
)
from slicewise.cluster.rpc.overview_messages import MonthNow, TenantThisMonth
from slicewise.cluster.slurm.unread_log import UnreadLog
from slicewise.slurm_plugin.admission_server.pipe import Decided, Decisions
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS
from slicewise.slurm_plugin.daemon.metrics import Metrics
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.common.qos_names import qos_name
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.types import Budget

DECIDED = Decided("refuse", "SW-QUOTA-NONE", "no", "", 7, "guest", "0.2", "enforce", 5.0, 0.0003)


NODE = NodeView("gpu1", "gpu1", frozenset({"IDLE"}), {"1g.10gb": 7}, {}, frozenset({"gpu"}))


def waiting(index: int, for_s: int) -> JobView:
    """A job of vision's that could have started that many seconds ago."""
    since_s = int(time.time()) - for_s
    changes = {"submit_s": since_s, "eligible_s": since_s, "reason": "Resources"}
    return job(index, qos=qos_name("vision"), held=False, **changes)


@pytest.fixture
async def busy(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """After two decisions, a look at Slurm, and a failed turn."""
    monkeypatch.setattr("slicewise.slurm_plugin.daemon.metrics.ASKED.reads", Counter(squeue=4))
    slurm = ScriptedSlurm(job(0), job(1), waiting(2, 400), waiting(3, 10))
    slurm.known_nodes = (NODE,)
    metrics, cluster_state = Metrics(), sync_of(slurm)
    vision = tenant("vision", 2000)
    budgets = {
        "budget": Budget(Period.MONTH, MillisliceSeconds(36_000)),
        "token_budget": Budget(Period.DAY, 2_000, meter=TOKENS.name),
    }
    paid = replace(vision, **budgets)
    cluster_state.set_policy(policy_of(paid), {})
    held = Standing(*map(Millislices, (2500, 2000, 100, 600)))
    cluster_state.quotas.set_standings({"vision": held}, {})
    cluster_state.quotas.changed_by_hand = 3
    cluster_state.requeues.count = 4
    cluster_state.quotas.left_millislice_s = {"vision": -500, "nlp": 7}
    cluster_state.quotas.left_tokens = {"vision": 1_500, "nlp": 7}
    cluster_state.month = MonthNow(
        month="2026-11",
        zone="UTC",
        currency="EUR",
        seen_s=0,
        tenants=(
            TenantThisMonth(tenant="", energy_mj=7),
            TenantThisMonth(tenant="vision", millionths=42),
        ),
    )
    cluster_state.money_budgets = (MoneyBudgetStatus("vision", 9_000_000, -5, 0.8, 1_700_000_000),)
    await cluster_state.turn()
    for energy_mj in (0, 5000):
        cluster_state.node_power.hear(told_energy(energy_mj), {})
    admission = AdmissionProcess(Path("a.sock"), "enforce", frozenset(), metrics.decided)
    admission._count(Decisions((DECIDED, DECIDED), dropped=4))
    unread = UnreadLog(lambda *_, **__: None)
    unread(Unread("job", "7", "EndTime", "soon"))
    metrics.watch(settings("enforce"), admission, cluster_state, ALONE, unread)
    metrics.begins("leases")
    metrics.turned("sync", 0.25, failed=False)
    metrics.turned("limits", 1.0, failed=True)
    return metrics


@pytest.fixture
def samples(busy: Metrics) -> dict[tuple[str, str], float]:
    """By name and labels, as Prometheus gets them."""
    address = f"127.0.0.1:{free_port()}"
    with busy.served(address), urllib.request.urlopen(f"http://{address}/metrics") as reply:
        text = reply.read().decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, ",".join(sorted(sample.labels.values()))): sample.value
        for family in families
        for sample in family.samples
    }


HOUR_S = 1_764_500_400


def told_energy(energy_mj: int) -> EnergyPostRequest:
    hour = ToldHour(
        hour_s=HOUR_S,
        gpu_uuid="GPU-1",
        measure=EnergyMeasure.COUNTER,
        model="H200-141GB",
        energy_mj=energy_mj,
        covered_ms=60_000,
        checked_mj=0,
        power_mj=0,
        parts=(ToldPart(job_id=0, split=Split.IDLE, energy_mj=energy_mj),),
    )
    drawn = ToldPower(gpu_uuid="GPU-1", power_mw=68_500)
    return EnergyPostRequest(node="gpu01", seen_by="m1", boards=(drawn,), hours=(hour,))


SHOWN = {
    ("slicewise_gpu_power_watts", "gpu01"): 68.5,
    ("slicewise_gpu_energy_joules_total", ""): 5,
    ("slicewise_admission_decisions_total", "SW-QUOTA-NONE,refuse"): 2,
    ("slicewise_admission_duration_seconds_count", ""): 2,
    ("slicewise_admission_duration_seconds_bucket", "0.0002"): 0,
    ("slicewise_admission_duration_seconds_bucket", "0.0005"): 2,
    ("slicewise_admission_unlogged_decisions_total", ""): 4,
    ("slicewise_admission_worker_restarts_total", "died"): 0,
    ("slicewise_lua_module_info", "0.2,enforce"): 1,
    ("slicewise_loop_duration_seconds_sum", "sync"): 0.25,
    ("slicewise_loop_failures_total", "sync"): 0,
    ("slicewise_loop_failures_total", "limits"): 1,
    ("slicewise_loop_failures_total", "leases"): 0,
    ("slicewise_slurm_unreadable_values_total", "job"): 1,
    ("slicewise_slurm_unreadable_values_total", "association"): 0,
    ("slicewise_slurm_requests_total", "squeue"): 4,
    ("slicewise_uninstalled", ""): 0,
    ("slicewise_is_leader", ""): 1,
    ("slicewise_unadmitted_jobs", ""): 0,
    ("slicewise_slurm_view_complete", ""): 1,
    ("slicewise_pending_jobs", ""): 4,
    ("slicewise_limits_changed_by_hand_total", ""): 3,
    ("slicewise_requeued_runs_total", ""): 4,
    ("slicewise_tenant_limit_millislices", "vision"): 2500,
    ("slicewise_tenant_lent_millislices", "vision"): 100,
    ("slicewise_tenant_borrowed_millislices", "vision"): 600,
    ("slicewise_capacity_millislices", ""): 7000,
    ("slicewise_tenant_late_jobs", "vision"): 1,
    ("slicewise_tenant_budget_period_seconds", "vision"): 30 * 86_400,
    ("slicewise_tenant_nominal_millislices", "vision"): 2000,
    ("slicewise_tenant_in_use_millislices", "vision"): 0,
    ("slicewise_tenant_own_in_use_millislices", "vision"): 0,
    ("slicewise_tenant_highest_limit_millislices", "vision"): 2000,
    ("slicewise_tenant_budget_amount_millislice_seconds", "vision"): 36_000,
    ("slicewise_tenant_budget_left_millislice_seconds", "vision"): -500,
    ("slicewise_tenant_token_budget_amount_tokens", "vision"): 2_000,
    ("slicewise_tenant_token_budget_left_tokens", "vision"): 1_500,
    ("slicewise_tenant_token_budget_period_seconds", "vision"): 86_400,
    ("slicewise_tenant_token_budget_left_tokens", "nlp"): None,
    ("slicewise_tenant_month_cost_millionths", "vision"): 42,
    ("slicewise_tenant_money_budget_amount_millionths", "vision"): 9_000_000,
    ("slicewise_tenant_money_budget_left_millionths", "vision"): -5,
    ("slicewise_tenant_money_budget_warn_ratio", "vision"): 0.8,
    ("slicewise_tenant_money_budget_period_end_timestamp_seconds", "vision"): 1_700_000_000,
    ("slicewise_tenant_budget_amount_millislice_seconds", "nlp"): None,
    ("slicewise_tenant_budget_left_millislice_seconds", "nlp"): None,
}


def test_shown(samples: dict[tuple[str, str], float]) -> None:
    assert {key: samples.get(key) for key in SHOWN} == SHOWN
    assert 0 <= samples["slicewise_slurm_view_age_seconds", ""] < 60


def test_all_that_is_served_is_as_catalogued(busy: Metrics) -> None:
    assert list(breaches(busy.registry.collect(), METRICS)) == []


@needs_promtool
def test_promtool_finds_nothing_to_mend_in_it(busy: Metrics) -> None:
    assert lint(busy.registry) == ""


def test_what_an_alert_counts_is_there_with_0_before_it_happens() -> None:
    """An increase from nothing to 1 is none for Prometheus."""
    metrics, daemon = Metrics(), sync_of(ScriptedSlurm())
    admission = AdmissionProcess(Path("a.sock"), "enforce", frozenset(), metrics.decided)
    metrics.watch(settings("enforce"), admission, daemon, ALONE, UnreadLog(lambda *_, **__: None))
    metrics.begins("limits")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }
    for cause in ("died", "hung", "late"):
        assert found["slicewise_admission_worker_restarts_total", cause] == 0
    assert found["slicewise_limits_changed_by_hand_total",] == 0
    assert found["slicewise_loop_failures_total", "limits"] == 0
    assert [found["slicewise_slurm_unreadable_values_total", one] for one in RECORDS] == [0] * len(
        RECORDS
    )


def test_without_an_address_nobody_is_answered() -> None:
    with Metrics().served(""):
        pass


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x", "127.0.0.1:99999", "256.1.1.1:0"])
def test_an_address_that_can_not_be_had_is_told(address: str) -> None:
    with (
        pytest.raises(SlicewiseError, match=r"daemon.metrics.*SW-SETTINGS"),
        Metrics().served(address),
    ):
        pass
