"""``slicewise overview`` and ``top``: gathers what the daemon has in memory."""

import time
from functools import cached_property

from cluster.language.periods import next_start_s
from cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest
from cluster.settings.file import Settings
from slurm_plugin.api.access import Principal, ReaderHandlers
from slurm_plugin.overview.facts import OverviewFacts
from slurm_plugin.overview.overview import overview
from slurm_plugin.state.controller import ClusterState

_FRESH_S = 1.0
"""Seconds for which a reader who asks again gets the same answer."""


class OverviewReads:
    """Answers how the cluster stands, without a question to Slurm or to the ledger.

    Many people may watch: what a reader was told within the last second is told again, and so the
    cost does not grow with the screens that one user has open.
    """

    def __init__(self, settings: Settings, cluster_state: ClusterState) -> None:
        self._settings = settings
        self._cluster_state = cluster_state
        self._facts: OverviewFacts | None = None
        self._gathered_s = 0.0
        self._told: dict[Principal, OverviewAnswer] = {}

    def handlers(self) -> ReaderHandlers:
        """What answers the request; raises UnreachableError (SW-DAEMON-STANDBY)."""
        return {OverviewRequest: self._overview}

    async def _overview(self, _: OverviewRequest, principal: Principal) -> OverviewAnswer:
        self._cluster_state.require_leader()
        now_s = time.monotonic()
        if self._facts is None or now_s - self._gathered_s > _FRESH_S:
            self._facts, self._gathered_s, self._told = self._gather(), now_s, {}
        if principal not in self._told:
            self._told[principal] = overview(self._facts, principal)
        return self._told[principal]

    @cached_property
    def _partitions(self) -> frozenset[str]:
        return frozenset(self._settings.cluster.partitions)

    def _gather(self) -> OverviewFacts:
        settings, state = self._settings, self._cluster_state
        now_s, zone = time.time(), settings.ledger.time_zone
        policy = state.quotas.policy
        return OverviewFacts(
            now_s=now_s,
            cluster=settings.cluster.name,
            mode=state.mode,
            is_uninstalled=state.is_uninstalled,
            observed_s=state.view.observed_s,
            complete=state.view.complete,
            launcher_silent_s=time.monotonic() - state.heard_s,
            unadmitted=state.unadmitted.count,
            jobs=state.jobs,
            nodes=state.nodes,
            services=state.view.services,
            reports={
                (one.tenant, one.name): one for one in state.service_reports.of(state.view.services)
            },
            kept_back=state.kept_back,
            policy=policy,
            ceilings=state.quotas.ceilings,
            left_millislice_s=state.quotas.left_millislice_s,
            resets_s={
                name: next_start_s(tenant.budget.period, int(now_s), zone)
                for name, tenant in policy.items()
                if tenant.budget is not None
            },
            partitions=self._partitions,
            costs=settings.costs,
            boards=settings.boards_by_type,
            whole_boards=settings.whole_boards,
            grace_s=settings.lending.grace_s,
        )
