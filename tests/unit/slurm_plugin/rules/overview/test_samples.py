"""Tests the figures that history keeps: those of the overview, and what waits for too long."""

from dataclasses import replace
from typing import Any

from builders.nodes import a_node
from builders.overview_world import ROOT, facts, replica, report, service
from builders.why_world import NOW_S, job, running

from slicewise.cluster.language.jobs import JobView
from slicewise.slurm_plugin.rules.common.history import (
    ClusterFigures,
    HistorySample,
    ServiceFigures,
)
from slicewise.slurm_plugin.rules.overview.samples import history_sample

AT_S = 10_000


def sample(*jobs: JobView, most: int = 3, **more: Any) -> HistorySample:
    return history_sample(facts(*jobs, **more), ROOT, AT_S, most)


def waits(number: int, ago_s: int, **changes: Any) -> JobView:
    """A job of vision that waits for quota since so many seconds."""
    view = job(number, "QOSGrpBilling", **changes)
    return replace(view, submit_s=int(NOW_S) - ago_s, eligible_s=int(NOW_S) - ago_s)


def test_the_cluster_s_states_are_those_of_the_overview():
    borrowed = running(2, qos="sw_vision_borrowed")
    found = sample(
        running(1),
        replace(borrowed, qos="slicewise_borrowed"),
        nodes=(a_node("node1", held=2), a_node("node2", "DOWN"), a_node("node3", "IDLE", "DRAIN")),
    )
    assert found.at_s == AT_S
    assert found.cluster.used + found.cluster.lent == 2000
    assert (found.cluster.idle, found.cluster.draining, found.cluster.down) == (5000, 7000, 7000)
    assert found.cluster.waiting == found.cluster.late == 0


def test_a_tenant_has_what_is_below_it():
    found = {one.tenant: one for one in sample(running(1), waits(2, 5)).tenants}
    assert found.keys() == {"lab", "vision", "nlp", "bio"}
    assert (found["vision"].in_use, found["lab"].in_use, found["nlp"].in_use) == (1000, 1000, 0)
    assert (found["vision"].waiting, found["lab"].waiting) == (1000, 1000)
    assert (found["lab"].nominal, found["vision"].budget_left) == (7000, None)


def test_late_is_what_the_guarantee_has_room_for_and_waits_beyond_the_grace_time():
    """Grace is 300 s here, and a minute more is allowed. vision's guarantee is four slices."""
    late = {one.tenant: one.late for one in sample(waits(1, 361), waits(2, 359)).tenants}
    assert late == {"lab": 1000, "vision": 1000, "nlp": 0, "bio": 0}
    full = tuple(running(number) for number in range(10, 14))
    held = (a_node("node1", held=4),)
    assert sample(*full, waits(1, 9000), nodes=held).cluster.late == 0
    assert sample(*full[:3], waits(1, 9000), waits(2, 9000), nodes=held).cluster.late == 1000
    assert sample(waits(1, 361)).cluster == ClusterFigures(
        used=0, lent=0, idle=7000, draining=0, down=0, waiting=1000, late=1000
    )


def test_a_service_has_what_the_launcher_told_lately():
    of = ("vision", "bert")
    (found,) = sample(replica(900), services=(service(),), reports={of: report()}).services
    assert found == ServiceFigures(*of, ready=1, desired=2, backlog=3, requests=12.5, p95=42.0)
    (silent,) = sample(replica(900), services=(service(),)).services
    assert silent == ServiceFigures(
        *of, ready=1, desired=None, backlog=None, requests=None, p95=None
    )


def test_of_too_many_services_those_are_kept_that_the_launcher_carries_then_the_older():
    many = tuple(service(f"vision/s{nth}", 900 - nth) for nth in range(5))
    reports = {("vision", "s1"): report()}
    found = sample(services=many, reports=reports).services
    assert [one.service for one in found] == ["s1", "s4", "s3"]
