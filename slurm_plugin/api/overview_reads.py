"""``slicewise overview`` and ``top``: gathers what the daemon has in memory."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.cluster.language.periods import next_start_s
from slicewise.cluster.language.slurm.interface import SlurmReader
from slicewise.cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.overview_facts import facts_now
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.overview.gpus import sharing_types
from slicewise.slurm_plugin.rules.overview.overview import overview
from slicewise.slurm_plugin.rules.overview.overview_facts import (
    OverviewFacts,
    Seats,
    SurveyedGpu,
    seats_of,
)
from slicewise.slurm_plugin.rules.overview.surveys import surveyed_gpus
from slicewise.slurm_plugin.state.cluster_state import ClusterState
from slicewise.slurm_plugin.state.node_looks import node_looks, node_records

_FRESH_S = 1.0
"""Seconds for which a reader who asks again gets the same answer, at least."""
_SHARE = 10.0
"""A moment lasts this many times as long as its answers took to make. So they take a tenth of a
processor's time at most, however large the cluster is and however many readers ask.
"""
_SURVEYS_S = 60.0
"""Seconds for which surveys and Slurm's files are not read again."""
_PATIENCE_S = 0.5
"""Seconds that a reader waits for what is read now: where instances lie, and who has which. The
next answer has what came too late.
"""
_AGAIN_S = 30.0
"""Seconds after a failure to read it."""
_JOBS_AT_ONCE = 20
"""Jobs that Slurm is asked for in one look, each by a request; those left are asked for in the next
look. So screens that users have open leave most of the bound on requests to the daemon's own looks.
"""
_RunKey = tuple[int, int, int | None]
"""Job id, number of requeues, Unix second of the start."""


class _Moment:
    """The cluster at one moment, and what readers were told of it: each answer is made once.

    It is made in a thread, so that a large cluster's holds nothing else up.

    Attributes:
        facts: what the daemon knew at that moment.
    """

    def __init__(self, facts: OverviewFacts) -> None:
        self.facts = facts
        self._told: dict[Principal, asyncio.Task[OverviewAnswer]] = {}
        self._began_s = time.monotonic()
        self._spent_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the next reader should be told of a newer one; not while answers are made."""
        if not all(answer.done() for answer in self._told.values()):
            return False
        fresh_s = max(_FRESH_S, _SHARE * self._spent_s)
        return time.monotonic() - self._began_s > fresh_s

    async def answer(self, principal: Principal) -> OverviewAnswer:
        """Return what this reader is told."""
        if principal not in self._told:
            self._told[principal] = asyncio.create_task(self._made(principal))
        return await asyncio.shield(self._told[principal])

    async def _made(self, principal: Principal) -> OverviewAnswer:
        began_s = time.monotonic()
        answer = await asyncio.to_thread(overview, self.facts, principal)
        self._spent_s += time.monotonic() - began_s
        return answer


class OverviewReads:
    """Answers how the cluster stands, from memory; it works while Slurm or the ledger is down.

    Many people may watch: what a reader was told within the last second is told again, and so the
    cost does not grow with the screens that one user has open. Two things are read beside it, while
    someone watches: surveys, which say where instances lie on their GPUs, once a minute; and by a
    question to Slurm, once for each run, which instance jobs have that share a type on a node.
    """

    def __init__(
        self,
        settings: Settings,
        slurm: SlurmReader,
        ledger: Ledger,
        cluster_state: ClusterState,
    ) -> None:
        self._settings = settings
        self._slurm = slurm
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._moment: _Moment | None = None
        self._renewal: asyncio.Task[_Moment] | None = None
        self._surveyed: Mapping[str, tuple[SurveyedGpu, ...]] = {}
        self._indices: dict[_RunKey, Mapping[str, frozenset[int]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._surveys_due_s = self._indices_due_s = float("-inf")

    def handlers(self) -> ReaderHandlers:
        """What answers the request; raises UnreachableError (SW-DAEMON-STANDBY)."""
        return {OverviewRequest: self._overview}

    async def facts(self) -> OverviewFacts:
        """What the daemon knows at the moment of which readers are told now.

        Raises UnreachableError (SW-DAEMON-STANDBY).
        """
        return (await self._now()).facts

    async def _overview(self, _: OverviewRequest, principal: Principal) -> OverviewAnswer:
        return await (await self._now()).answer(principal)

    async def _now(self) -> _Moment:
        self._cluster_state.require_leader()
        if self._moment is None or self._moment.is_over:
            if self._renewal is None:
                self._renewal = asyncio.create_task(self._renewed())
            self._moment = await asyncio.shield(self._renewal)
        return self._moment

    async def _renewed(self) -> _Moment:
        try:
            jobs = self._cluster_state.jobs
            seats = await asyncio.to_thread(seats_of, jobs, self._partitions)
            await self._read_beside(seats)
            return _Moment(self._gather(jobs, seats))
        finally:
            self._renewal = None

    async def _read_beside(self, seats: Seats) -> None:
        """Have read what is due, and wait for it a little, but not for what is read already."""
        if self._reading is not None:
            return
        unknown, now_s = self._unknown(seats), time.monotonic()
        may_ask = now_s >= self._indices_due_s and not self._cluster_state.pacing.has_spent_all
        due = [self._read_surveys()] if now_s >= self._surveys_due_s else []
        if unknown and may_ask:
            due.append(self._read_indices(unknown[:_JOBS_AT_ONCE]))
        if due:
            self._reading = asyncio.create_task(self._read(due))
            await asyncio.wait((self._reading,), timeout=_PATIENCE_S)

    async def _read(self, due: Sequence[Coroutine[None, None, None]]) -> None:
        try:
            outcomes = await asyncio.gather(*due, return_exceptions=True)
        finally:
            self._reading = None
        for outcome in outcomes:
            if outcome is not None:
                report_failure("request_failed", outcome)

    async def _read_surveys(self) -> None:
        nodes = self._cluster_state.nodes
        self._surveys_due_s = time.monotonic() + _SURVEYS_S
        # Those read before stay: where they no longer fit what Slurm has, they are not used.
        with suppress(SlicewiseError):
            self._surveyed = await asyncio.to_thread(self._surveys, nodes)

    def _surveys(self, nodes: Sequence[NodeView]) -> Mapping[str, tuple[SurveyedGpu, ...]]:
        records = node_records(self._settings, self._ledger)
        return surveyed_gpus(node_looks(self._settings, records, nodes, wall_s()))

    def _unknown(self, seats: Seats) -> tuple[JobView, ...]:
        """Jobs of which it is not known yet which instances they have; forget those that ended."""
        sharing = sharing_types(seats)
        keys = {_key(job) for job in sharing}
        self._indices = {
            key: device_indices for key, device_indices in self._indices.items() if key in keys
        }
        return tuple(job for job in sharing if _key(job) not in self._indices)

    async def _read_indices(self, jobs: Sequence[JobView]) -> None:
        try:
            found = await self._slurm.devices(jobs)
        except SlicewiseError:
            self._indices_due_s = time.monotonic() + _AGAIN_S
            return
        self._indices |= {_key(job): found.get(job.job_id, {}) for job in jobs}

    @cached_property
    def _partitions(self) -> frozenset[str]:
        return frozenset(self._settings.cluster.partitions)

    def _gather(self, jobs: tuple[JobView, ...], seats: Seats) -> OverviewFacts:
        zone, state = self._settings.ledger.time_zone, self._cluster_state
        now_s = int(wall_s())
        return facts_now(
            self._settings,
            state,
            jobs,
            seats=seats,
            resets_s={
                name: next_start_s(tenant.budget.period, now_s, zone)
                for name, tenant in state.quotas.policy.items()
                if tenant.budget is not None
            },
            surveyed=self._surveyed,
            indices={key[0]: device_indices for key, device_indices in self._indices.items()},
        )


def _key(job: JobView) -> _RunKey:
    return job.job_id, job.restarts, job.start_s
