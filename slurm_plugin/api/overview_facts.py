"""Gathers what the daemon has in memory of the cluster at one moment."""

import time
from collections.abc import Mapping

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Seats, SurveyedGpu
from slicewise.slurm_plugin.state.cluster_state import ClusterState


def facts_now(
    settings: Settings,
    state: ClusterState,
    jobs: tuple[JobView, ...],
    *,
    seats: Seats,
    resets_s: Mapping[str, int | None],
    surveyed: Mapping[str, tuple[SurveyedGpu, ...]],
    indices: Mapping[int, Mapping[str, frozenset[int]]],
) -> OverviewFacts:
    """Return the facts as of the last look; what is named here costs time, and may be empty."""
    return OverviewFacts(
        now_s=wall_s(),
        cluster=settings.cluster.name,
        mode=state.mode,
        is_uninstalled=state.is_uninstalled,
        observed_s=state.view.observed_s,
        complete=state.view.complete,
        launcher_silent_s=time.monotonic() - state.heard_s,
        ledger_silent_s=time.monotonic() - state.ledger_heard_s,
        unadmitted=state.unadmitted.count,
        jobs=jobs,
        seats=seats,
        nodes=state.nodes,
        services=state.view.services,
        reports={
            (report.tenant, report.name): report
            for report in state.service_reports.of(state.view.services)
        },
        kept_back=state.kept_back,
        policy=state.quotas.policy,
        standings=state.quotas.standings,
        left_millislice_s=state.quotas.left_millislice_s,
        resets_s=resets_s,
        partitions=frozenset(settings.cluster.partitions),
        costs=settings.costs,
        models=settings.models,
        boards=settings.boards_by_type,
        whole_boards=settings.whole_boards,
        grace_s=settings.lending.grace_s,
        overcommitment=state.quotas.overcommitment,
        barred=state.barred.jobs,
        loans=state.quotas.loans,
        recalls=state.quotas.recalls,
        boards_mw=state.node_power.boards_mw(),
        money_budgets=state.money_budgets,
        month=state.month,
        surveyed=surveyed,
        indices=indices,
    )
