"""Performs the demo step by step once the cluster is up, and records what happens."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, Refusal, SlicewiseError
from slicewise.sandbox.demo.acts import ActsPerformance
from slicewise.sandbox.demo.chat import ChatPerformance
from slicewise.sandbox.demo.commands import Commands
from slicewise.sandbox.demo.live import Display, Scene
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import (
    BatchJob,
    LedgerView,
    LoanChange,
    Observer,
    Recording,
    Replicas,
    RequestRecord,
    Sample,
    ServiceState,
    Wake,
)
from slicewise.sandbox.demo.report import LEDGER_TOLERANCE, lent_now, percentile_ms, slice_seconds
from slicewise.sandbox.demo.scenario import (
    CHAT,
    QUIET_TIMEOUT_S,
    RECENT_S,
    SAMPLE_INTERVAL_S,
    SERVED_TIMEOUT_S,
    SERVING,
    SETTLE_TIMEOUT_S,
    VISION,
    WAKE_TOKENS,
    TenantPlan,
)
from slicewise.sandbox.demo.trace import Arrival


@dataclass(frozen=True)
class _Books:
    """What is read at the end; ``Recording`` says what each is."""

    ledger: LedgerView
    sacct: Mapping[str, int]
    sacct_of_chat: int
    loans: tuple[LoanChange, ...]


@dataclass
class Story:
    """One performance; ``perform`` is called once."""

    load: Load
    observer: Observer
    commands: Commands
    display: Display
    refusal: Refusal | None
    shape_jobs: tuple[BatchJob, BatchJob]
    facts: Mapping[str, str]
    begin_s: float
    """``time.monotonic()`` at which the demo began, for its duration."""
    _sampled: asyncio.Event = field(default_factory=asyncio.Event)
    _phase: str = ""
    _news: str = ""
    _phase_ends_s: float | None = None
    _samples: list[Sample] = field(default_factory=list)
    _latest: tuple[Sample, ...] = ()
    _rates: list[float] = field(default_factory=list)
    _wakes: list[Wake] = field(default_factory=list)

    async def perform(self, arrivals: Sequence[Arrival]) -> Recording:
        """Wake the services, replay, wait for quiet, wake one again, wait; then read both books.

        The acts and chats are played beside the replay.
        """
        acts = ActsPerformance(self.commands, self, *self.shape_jobs)
        chats = ChatPerformance(self.load, self)
        sampling = asyncio.create_task(self._sample_forever())
        try:
            await self._served()
            await self._wake((VISION,))
            replay_s = arrivals[-1].at_s if arrivals else 0.0
            self._enter(f"replaying {len(arrivals)} requests of the trace", replay_s)
            await asyncio.gather(self.load.replay(arrivals), acts.perform(), chats.perform())
            await self._quiet("no more requests: replicas drain and give their slices back")
            await acts.fill_all()
            await self._wake((VISION,))
            await self._quiet("quiet again")
            self._enter("the batch job runs its last tasks", None)
            await acts.stop_filling()
            self._enter("reading the ledger and Slurm's accounting", None)
            books = await self._settled_view()
            played = await acts.record()
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
        return Recording(
            requests=tuple(self.load.records),
            samples=tuple(self._samples),
            wakes=tuple(self._wakes),
            refusal=self.refusal,
            ledger=books.ledger,
            sacct_millislice_s_by_tenant=books.sacct,
            duration_s=time.monotonic() - self.begin_s,
            facts=self.facts,
            loans=books.loans,
            acts=played,
            chats=tuple(chats.chats),
            sacct_millislice_s_of_chat=books.sacct_of_chat,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first request."""
        return self.load.elapsed_s

    def borrowed(self, service: str) -> int:
        """Return how many replicas of a service hold GPUs on borrowed quota now."""
        return sum(replica.borrowed for replica in self._replicas(service))

    def costing(self, service: str) -> int:
        """Return how many slots of a service held or asked for GPUs in the last sample."""
        return sum(replica.costing for replica in self._replicas(service))

    def _replicas(self, service: str) -> Sequence[Replicas]:
        return [sample.state.replicas for sample in self._latest if sample.state.service == service]

    def tell(self, news: str) -> None:
        """Show what happens now beside the load, until the next phase."""
        self._news = news
        self._show()

    def _enter(self, phase: str, takes_s: float | None) -> None:
        self._phase, self._news = phase, ""
        self._phase_ends_s = None if takes_s is None else self.load.elapsed_s + takes_s
        self._show()

    async def _served(self) -> None:
        """Wait until the gateway serves every service.

        Raises OutsideError (SW-SANDBOX-FAILED) after ``SERVED_TIMEOUT_S``.
        """
        self._enter("waiting for the gateway to serve all services", None)
        wanted = {plan.service for plan in (*SERVING, CHAT)}
        await self._until(lambda: wanted <= self._services(), SERVED_TIMEOUT_S)
        if missing := wanted - self._services():
            raise OutsideError(
                Code.SANDBOX_FAILED,
                f"Not served after {SERVED_TIMEOUT_S:g} s: {', '.join(sorted(missing))}.",
                "See daemon.log, launcher.log and haproxy.log of the sandbox (--keep).",
            )

    def _services(self) -> set[str]:
        return {sample.state.service for sample in self._latest}

    async def _wake(self, plans: Sequence[TenantPlan]) -> None:
        """Send one request to each of these services, which should have no replica now."""
        self._enter("waking from zero: the first request is held until a replica is up", None)
        before = {plan.service: self.costing(plan.service) for plan in plans}
        requests = await asyncio.gather(
            *(self.load.request(Arrival(0.0, plan.service, *WAKE_TOKENS)) for plan in plans)
        )
        self._wakes += [
            Wake(plan.service, before[plan.service], request)
            for plan, request in zip(plans, requests, strict=True)
        ]

    async def _quiet(self, phase: str) -> None:
        """Wait until no service has a replica, for at most ``QUIET_TIMEOUT_S``."""
        self._enter(phase, None)
        begin_s = self.load.elapsed_s
        await self._until(lambda: self._all_gone(since_s=begin_s), QUIET_TIMEOUT_S)

    def _all_gone(self, since_s: float) -> bool:
        return bool(self._latest) and all(
            sample.t_s > since_s and sample.state.replicas.costing == 0 for sample in self._latest
        )

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the samples fulfil the condition, for at most ``timeout_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._sampled.clear()
                    await self._sampled.wait()

    async def _settled_view(self) -> _Books:
        """Return both books and the loans' history.

        Waits until the books agree and every loan has ended, for at most ``SETTLE_TIMEOUT_S``: all
        of them lag a little.
        """
        deadline_s = self.load.elapsed_s + SETTLE_TIMEOUT_S
        tenants = [plan.tenant for plan in SERVING]
        while True:
            ledger = await asyncio.to_thread(self.commands.ledger)
            sacct = await asyncio.to_thread(self.commands.sacct)
            of_chat = await asyncio.to_thread(self.commands.sacct, CHAT)
            loans = await asyncio.to_thread(self.commands.loans, tenants)
            uses = slice_seconds(ledger.millislice_s_by_tenant, sacct).values()
            agree = all(use.deviation <= LEDGER_TOLERANCE for use in uses)
            if (agree and not lent_now(loans)) or self.load.elapsed_s > deadline_s:
                begin_s = time.time() - self.load.elapsed_s
                moved = tuple(replace(loan, t_s=loan.t_s - begin_s) for loan in loans)
                return _Books(ledger, sacct, of_chat.get(CHAT.tenant, 0), moved)
            await asyncio.sleep(1.0)

    async def _sample_forever(self) -> None:
        seen_due, last_s = 0, self.load.elapsed_s
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            try:
                states = await self.observer.sample()
            except SlicewiseError:
                continue  # Without an answer there is no sample: the picture keeps the last one.
            now_s = self.load.elapsed_s
            new = self.load.due[seen_due:]
            seen_due += len(new)
            self._latest = tuple(self._sample(state, new, now_s) for state in states)
            self._samples += self._latest
            self._rates.append(len(new) / (now_s - last_s))
            last_s = now_s
            self._sampled.set()
            self._show()

    def _sample(self, state: ServiceState, new: Sequence[Arrival], now_s: float) -> Sample:
        recent = [
            request
            for request in recently_ended(self.load.records, now_s - RECENT_S)
            if request.service == state.service
        ]
        return Sample(
            t_s=now_s,
            state=state,
            arrivals=sum(arrival.service == state.service for arrival in new),
            p50_ms=percentile_ms(recent, 50),
            p95_ms=percentile_ms(recent, 95),
        )

    def _show(self) -> None:
        now_s = self.load.elapsed_s
        failed = sum(bool(request.error) for request in self.load.records)
        self.display.show(
            Scene(
                phase=self._phase,
                news=self._news,
                elapsed_s=now_s,
                left_s=None if self._phase_ends_s is None else self._phase_ends_s - now_s,
                samples=self._latest,
                arrivals_per_s=tuple(self._rates),
                answered=len(self.load.records) - failed,
                failed=failed,
            )
        )


def recently_ended(records: Sequence[RequestRecord], since_s: float) -> Sequence[RequestRecord]:
    """Return the records that ended at ``since_s`` or later; records are in order of their ends."""
    first = len(records)
    while first and records[first - 1].due_s + records[first - 1].latency_s >= since_s:
        first -= 1
    return records[first:]
