"""A small cluster for the tests of ``slicewise overview`` and ``top``; it is second 10,000."""

from typing import Any

from builders.nodes import a_node
from builders.service_views import a_report, a_service, slots_in
from builders.tenants import policy_of, tenant
from builders.why_world import COSTS, GPU, NOW_S, running
from slicewise.cluster.language.gpus.mig_profiles import WholeBoard, board
from slicewise.cluster.language.jobs import JobTag, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceQuality, ServiceReport, ServiceView
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, seats_of
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Loan

ROOT = Principal(0, "root", None)
ALICE = Principal(61001, "alice", frozenset({"vision"}))
MODEL = "A100-80GB"
BOARD = board(MODEL)
POLICY = policy_of(
    tenant("lab", 0, borrowing_limit_millislices=9000),
    tenant("vision", 4000, "lab"),
    tenant("nlp", 3000, "lab", borrowing_limit_millislices=9000),
    tenant("bio", 7000, lending_limit_millislices=7000),
)


def service(name: str = "vision/bert", array: int = 814, **changes: Any) -> ServiceView:
    """A service with three slots, of which one runs."""
    owner, _, short = name.partition("/")
    fields: dict[str, Any] = {
        "directives": {"tenant": owner, "name": short, "min_replicas": "1"},
        "slots": slots_in("running", "held", "held"),
    }
    return a_service(array_job_id=array, tenant=owner, name=short, **(fields | changes))


def report(name: str = "vision/bert", **changes: Any) -> ServiceReport:
    owner, _, short = name.partition("/")
    fields: dict[str, Any] = {
        "in_flight": 4,
        "queued": 2,
        "held": 1,
        "rate_per_s": 12.5,
        "desired_replicas": 2,
        "reason": "3 wait",
        "ready": ((814, 0),),
        "quality": ServiceQuality(span_s=60, answered=9, p95_ms=42.0),
    }
    return a_report(tenant=owner, name=short, **(fields | changes))


def replica(number: int, **changes: Any) -> JobView:
    """A job of the service vision/bert that runs on node1."""
    tag = JobTag("ab", "vision", service="bert").text()
    return running(number, array_job_id=814, task_index=number - 900, admin_comment=tag, **changes)


def facts(*jobs: JobView, nodes: tuple[NodeView, ...] | None = None, **more: Any) -> OverviewFacts:
    """What the daemon knows of these jobs on one node, unless ``nodes`` names others."""
    node1 = a_node("node1", held=sum(bool(job.nodes) for job in jobs))
    policy = more.get("policy", POLICY)
    loans = [Loan(*ends, Millislices(n)) for ends, n in more.pop("loans", {}).items()]
    plain: dict[str, Any] = {
        "now_s": NOW_S,
        "cluster": "lab",
        "mode": "enforce",
        "is_uninstalled": False,
        "observed_s": NOW_S - 2,
        "complete": True,
        "launcher_silent_s": 1.0,
        "ledger_silent_s": 1.0,
        "unadmitted": 0,
        "jobs": jobs,
        "seats": seats_of(jobs, GPU),
        "nodes": (node1,) if nodes is None else nodes,
        "services": (),
        "reports": {},
        "kept_back": {},
        "policy": policy,
        "standings": standings(policy, loans),
        "left_millislice_s": {},
        "resets_s": {},
        "partitions": GPU,
        "costs": COSTS,
        "models": dict.fromkeys(COSTS, MODEL),
        "boards": dict.fromkeys(COSTS, BOARD),
        "whole_boards": dict.fromkeys(COSTS, WholeBoard(7, Millislices(7000))),
        "grace_s": 300,
        "loans": tuple(loans),
    }
    return OverviewFacts(**{**plain, **more})
