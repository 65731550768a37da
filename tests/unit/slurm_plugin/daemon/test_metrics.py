"""Tests what Prometheus reads from the daemon."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from free_ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from scripted import ScriptedSlurm, job, policy_of, sync_of, tenant

from cluster.language.errors import SlicewiseError
from cluster.language.periods import Period
from cluster.language.units import MillisliceSeconds
from cluster.runtime.leadership import ALONE
from cluster.slurm.unread import Unread, UnreadLog
from slurm_plugin.admission_server.pipe import Decided, Decisions
from slurm_plugin.admission_server.process import AdmissionProcess
from slurm_plugin.daemon.metrics import Metrics
from slurm_plugin.quota.types import Budget

DECIDED = Decided("refuse", "SW-QUOTA-NONE", "no", "", 7, "guest", "0.2", "enforce", 5.0, 0.0003)


@pytest.fixture
async def samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[str, str], float]]:
    """By name and labels, after two decisions, a look at Slurm, and a failed turn."""
    monkeypatch.setattr("slurm_plugin.daemon.metrics.ASKED.reads", Counter(squeue=4))
    metrics, cluster_state = Metrics(), sync_of(ScriptedSlurm(job(0), job(1)))
    vision = tenant("vision", 2000)
    paid = replace(vision, budget=Budget(Period.MONTH, MillisliceSeconds(36_000)))
    cluster_state.set_policy(policy_of(paid), {})
    cluster_state.quotas.left_millislice_s = {"vision": -500, "nlp": 7}
    await cluster_state.turn()
    admission = AdmissionProcess(Path("a.sock"), "enforce", frozenset(), metrics.decided)
    admission._count(Decisions((DECIDED, DECIDED), dropped=4))
    unread = UnreadLog(lambda *_, **__: None)
    unread(Unread("job", "7", "EndTime", "soon"))
    metrics.watch(admission, cluster_state, ALONE, unread)
    metrics.turned("sync", 0.25, failed=False)
    metrics.turned("limits", 1.0, failed=True)
    address = f"127.0.0.1:{free_port()}"
    with metrics.served(address), urllib.request.urlopen(f"http://{address}/metrics") as reply:  # noqa: ASYNC210
        text = reply.read().decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, ",".join(sorted(sample.labels.values()))): sample.value
        for family in families
        for sample in family.samples
    }


SHOWN = {
    ("slicewise_decisions_total", "SW-QUOTA-NONE,refuse"): 2,
    ("slicewise_decision_seconds_count", ""): 2,
    ("slicewise_decision_seconds_bucket", "0.0002"): 0,
    ("slicewise_decision_seconds_bucket", "0.0005"): 2,
    ("slicewise_dropped_reports_total", ""): 4,
    ("slicewise_worker_restarts_total", ""): 0,
    ("slicewise_module_info", "0.2,enforce"): 1,
    ("slicewise_turn_seconds_sum", "sync"): 0.25,
    ("slicewise_turn_failures_total", "sync"): 0,
    ("slicewise_turn_failures_total", "limits"): 1,
    ("slicewise_slurm_unreadable_total", "EndTime,job"): 1,
    ("slicewise_slurm_requests_total", "squeue"): 4,
    ("slicewise_uninstalled", ""): 0,
    ("slicewise_leads", ""): 1,
    ("slicewise_unadmitted_jobs", ""): 0,
    ("slicewise_view_complete", ""): 1,
    ("slicewise_pending_jobs", ""): 2,
    ("slicewise_tenant_nominal_millislices", "vision"): 2000,
    ("slicewise_tenant_in_use_millislices", "vision"): 0,
    ("slicewise_tenant_own_in_use_millislices", "vision"): 0,
    ("slicewise_tenant_highest_ceiling_millislices", "vision"): 2000,
    ("slicewise_tenant_budget_rule_millislice_seconds", "vision"): 36_000,
    ("slicewise_tenant_budget_left_millislice_seconds", "vision"): -500,
    ("slicewise_tenant_budget_rule_millislice_seconds", "nlp"): None,
    ("slicewise_tenant_budget_left_millislice_seconds", "nlp"): None,
}


def test_shown(samples: dict[tuple[str, str], float]) -> None:
    assert {key: samples.get(key) for key in SHOWN} == SHOWN
    assert 0 <= samples["slicewise_view_age_seconds", ""] < 60


def test_each_name_says_whose_it_is_and_its_unit(samples: dict[tuple[str, str], float]) -> None:
    endings = Counter(name.rpartition("_")[2] for name, _ in samples)
    assert {name for name, _ in samples if not name.startswith("slicewise_")} == set()
    plain = {"leads", "complete", "jobs", "uninstalled"}
    assert set(endings) - plain <= {
        *("total", "created", "bucket", "sum", "count", "info", "seconds", "millislices"),
    }


def test_without_an_address_nobody_is_answered() -> None:
    with Metrics().served(""):
        pass


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x", "127.0.0.1:99999", "256.1.1.1:0"])
def test_an_address_that_can_not_be_had_is_told(address: str) -> None:
    with (
        pytest.raises(SlicewiseError, match=r"daemon.metrics.*SW-METRICS"),
        Metrics().served(address),
    ):
        pass
