"""A small Slurm with its accounting, and everything that can happen between it and a ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.jobs import JobState, JobView, RunRecord
from cluster.units import Millislices, MillisliceSeconds
from slurm_plugin.decide.charging import (
    ACCOUNTING_DELAY_S,
    Tariff,
    charge,
    next_watermark_s,
)
from slurm_plugin.decide.gone import LOST_AFTER_S, Gone, gone_runs, live_runs, lost_ends
from slurm_plugin.decide.model import (
    DEBIT_CREDIT,
    Account,
    Charge,
    Reservation,
    RunKey,
    Statement,
    StatementRow,
    Transfer,
)
from slurm_plugin.decide.statement import open_row, totals

PARTITION = "gpu"
COSTS = {"1g.10gb": Millislices(1000), "1g.20gb": Millislices(1750), "3g.40gb": Millislices(3500)}
START_S = 1_800_000_000


class Store(Protocol):
    """What the loop needs of a ledger."""

    def apply(self, charges: Sequence[Charge]) -> frozenset[RunKey]: ...
    def open_reservations(self) -> tuple[Reservation, ...]: ...
    def accounted_until_s(self) -> int: ...
    def set_accounted_until_s(self, second: int) -> None: ...
    def statement(self, tenant: str | None, since_s: int, now_s: int) -> Statement: ...
    def imbalance(self) -> int: ...


class OverdrawnError(Exception):
    """More was posted or voided than was reserved."""


@dataclass
class MemoryStore:
    """The ledger's rules in a few lines: what PostgreSQL's tables and triggers must agree with."""

    charges: dict[RunKey, Charge] = field(default_factory=dict)
    watermark_s: int = 0

    def apply(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        fresh = [one for one in charges if len(self._transfers(one.run.key)) == one.after]
        for one in fresh:
            together = (*self._transfers(one.run.key), *one.transfers)
            if any(
                balance(together[:end], Account.RESERVED) < 0 for end in range(len(together) + 1)
            ):
                raise OverdrawnError(one)
            self.charges[one.run.key] = Charge(one.run, 0, together)
        return frozenset(one.run.key for one in fresh)

    def _transfers(self, key: RunKey) -> tuple[Transfer, ...]:
        return self.charges[key].transfers if key in self.charges else ()

    def open_reservations(self) -> tuple[Reservation, ...]:
        return tuple(
            Reservation(
                run.key,
                run.tenant,
                run.user,
                run.task,
                run.gres,
                run.cost_millislices,
                balance(one.transfers, Account.RESERVED),
                len(one.transfers),
            )
            for _, one in sorted(self.charges.items())
            if balance(one.transfers, Account.RESERVED)
            for run in (one.run,)
        )

    def accounted_until_s(self) -> int:
        return self.watermark_s

    def set_accounted_until_s(self, second: int) -> None:
        self.watermark_s = max(self.watermark_s, second)

    def statement(self, tenant: str | None, since_s: int, now_s: int) -> Statement:
        charges = sorted(self.charges.values(), key=lambda one: (one.run.tenant, one.run.key))
        rows = tuple(_row(one, now_s) for one in charges if tenant in (None, one.run.tenant))
        rows = tuple(row for row in rows if row.end_s is None or row.end_s >= since_s)
        return Statement(rows, totals(rows))

    def imbalance(self) -> int:
        return sum(
            abs(sum(balance(one.transfers, account) for account in Account))
            for one in self.charges.values()
        )


def balance(transfers: Sequence[Transfer], account: Account) -> MillisliceSeconds:
    """Credits less debits."""
    total = 0
    for transfer in transfers:
        debit, credit = DEBIT_CREDIT[transfer.kind]
        total += transfer.amount_millislice_s * ((account == credit) - (account == debit))
    return MillisliceSeconds(total)


def _row(one: Charge, now_s: int) -> StatementRow:
    reserved = balance(one.transfers, Account.RESERVED)
    if reserved:
        return open_row(one.run, reserved, now_s)
    used = balance(one.transfers, Account.USED)
    return StatementRow(one.run, one.transfers[-1].until_s, used, MillisliceSeconds(0))


@dataclass
class SimulatedRun:
    """One run of a job; ``visible_s`` is when accounting shows its end.

    Accounting may lose it: then ``known_s`` is the first look at Slurm without it.
    """

    job_id: int
    start_s: int
    gres: Mapping[str, int]
    partition: str
    limit_s: int | None
    state: JobState = JobState.RUNNING
    end_s: int | None = None
    visible_s: int = 0
    lost: bool = False
    known_s: int | None = None

    @property
    def cost(self) -> int:
        return sum(COSTS[kind] * count for kind, count in self.gres.items())

    @property
    def charged(self) -> bool:
        return self.partition == PARTITION and bool(self.gres)

    @property
    def tres(self) -> Mapping[str, str]:
        counts = {f"gres/gpu:{kind}": str(count) for kind, count in self.gres.items()}
        return {"cpu": "1", "billing": str(self.cost), **counts}

    @property
    def account(self) -> str:
        return f"tenant{self.job_id % 2}"


def job_view(run: SimulatedRun) -> JobView:
    return JobView(
        job_id=run.job_id,
        array_job_id=None,
        task_index=None,
        untouched=frozenset(),
        name="job",
        user="alice",
        uid=1000,
        account=run.account,
        partition=run.partition,
        qos="normal",
        state=run.state,
        reason="None",
        held=False,
        priority=1,
        admin_comment="",
        comment="",
        tres=run.tres,
        nodes=("gpu01",),
        submit_s=run.start_s,
        start_s=run.start_s,
        end_s=None,
        eligible_s=run.start_s,
        time_limit_s=run.limit_s,
        restarts=0,
    )


def run_record(run: SimulatedRun, now_s: int) -> RunRecord:
    ended = run.end_s is not None and run.visible_s <= now_s and not run.lost
    return RunRecord(
        job_id=run.job_id,
        task=str(run.job_id),
        user="alice",
        account=run.account,
        partition=run.partition,
        start_s=run.start_s,
        end_s=run.end_s if ended else None,
        state="COMPLETED" if ended else "RUNNING",
        time_limit_s=run.limit_s,
        tres=run.tres,
    )


_LIMITS = st.none() | st.integers(1, 7200)
_GRES = st.dictionaries(st.sampled_from(sorted(COSTS)), st.integers(1, 3), max_size=2)
_JOBS = st.integers(1, 4)
_LATEST_S = 10 * ACCOUNTING_DELAY_S
_DELAYS = st.integers(0, ACCOUNTING_DELAY_S) | st.integers(0, _LATEST_S)
"""How late accounting shows an end. Beyond ``ACCOUNTING_DELAY_S`` only reserved runs are found."""


class World(RuleBasedStateMachine):
    """Starts, ends, requeues, changed limits, late accounting, stale looks, crashes, replays."""

    cluster = "simulated"
    make_store: Callable[[], Store] = MemoryStore

    @initialize()
    def begin(self) -> None:
        self.now_s = START_S
        self.runs: list[SimulatedRun] = []
        self.store = self.make_store()
        self.store.set_accounted_until_s(START_S - 1)
        self.tariff = Tariff(self.cluster, frozenset({PARTITION}), COSTS)
        self.decided: list[tuple[Charge, ...]] = []
        self.looked: tuple[int, tuple[JobView, ...]] = (START_S, ())
        self.gone: Mapping[RunKey, Gone] = {}

    def _running(self, job_id: int) -> SimulatedRun | None:
        own = (run for run in self.runs if run.job_id == job_id and run.end_s is None)
        return next(own, None)

    @rule(seconds=st.integers(1, 3000))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(
        job_id=_JOBS,
        gres=_GRES,
        limit_s=_LIMITS,
        partition=st.sampled_from((PARTITION, PARTITION, "cpu")),
        delay_s=_DELAYS,
    )
    def start_or_requeue(
        self,
        job_id: int,
        gres: Mapping[str, int],
        limit_s: int | None,
        partition: str,
        delay_s: int,
    ) -> None:
        self.end(job_id, delay_s)
        if any(run.job_id == job_id and run.start_s == self.now_s for run in self.runs):
            self.now_s += 1
        self.runs.append(SimulatedRun(job_id, self.now_s, gres, partition, limit_s))

    @rule(job_id=_JOBS, delay_s=_DELAYS)
    def end(self, job_id: int, delay_s: int) -> None:
        run = self._running(job_id)
        if run is not None:
            if not self._is_reserved(run):
                delay_s = min(delay_s, ACCOUNTING_DELAY_S)
            run.end_s, run.visible_s = self.now_s, self.now_s + delay_s

    @rule(job_id=_JOBS)
    def end_and_be_lost(self, job_id: int) -> None:
        run = self._running(job_id)
        if run is not None and self._is_reserved(run):
            run.end_s, run.lost = self.now_s, True

    def _is_reserved(self, run: SimulatedRun) -> bool:
        key = RunKey(self.cluster, run.job_id, run.start_s)
        return key in {held.key for held in self.store.open_reservations()}

    @rule()
    def restart(self) -> None:
        """The daemon starts anew: what it remembered is gone."""
        self.gone = {}
        for run in self.runs:
            run.known_s = None

    @rule(job_id=_JOBS, limit_s=_LIMITS)
    def change_limit(self, job_id: int, limit_s: int | None) -> None:
        run = self._running(job_id)
        if run is not None:
            run.limit_s = limit_s

    @rule(job_id=_JOBS, state=st.sampled_from((JobState.RUNNING, JobState.SUSPENDED)))
    def suspend_or_resume(self, job_id: int, state: JobState) -> None:
        run = self._running(job_id)
        if run is not None:
            run.state = state

    @rule()
    def look_at_jobs(self) -> None:
        live = (run for run in self.runs if run.end_s is None)
        self.looked = (self.now_s, tuple(job_view(run) for run in live))

    @rule(accounting=st.booleans(), booked=st.integers(0, 3))
    def turn(self, accounting: bool, booked: int) -> None:
        """One turn on the last look, however stale; ``booked`` 0 is a crash before anything."""
        since_s = self.store.accounted_until_s()
        lost = self._follow_gone()
        records = self._accounting(since_s) if accounting else ()
        reservations = self.store.open_reservations()
        decided = charge(
            self.tariff, self.looked[1], records, reservations, lost if accounting else {}
        )
        self.decided.append(decided.charges)
        if booked < 2:  # A crash in the middle: the watermark stays where it is.
            self.store.apply(decided.charges[:booked])
            return
        self.store.apply(decided.charges)
        if accounting:
            still_open = self.store.open_reservations()
            until_s = next_watermark_s(since_s, self.looked[0], self.looked[1], still_open)
            self.store.set_accounted_until_s(until_s)

    def _follow_gone(self) -> Mapping[RunKey, int]:
        looked_s, jobs = self.looked
        self.gone = gone_runs(self.gone, looked_s, jobs, self.store.open_reservations())
        live = live_runs(jobs)
        for run in self.runs:
            ended = run.end_s is not None and (run.job_id, run.start_s) not in live
            if ended and run.known_s is None:
                run.known_s = looked_s
        return lost_ends(self.gone, looked_s)

    def _accounting(self, since_s: int) -> tuple[RunRecord, ...]:
        records = (run_record(run, self.now_s) for run in self.runs)
        return tuple(one for one in records if one.end_s is None or one.end_s > since_s)

    @rule(which=st.integers(0, 100))
    def replay(self, which: int) -> None:
        """An old decision comes again; it may only do what it would have done the first time."""
        if self.decided:
            self.store.apply(self.decided[which % len(self.decided)])

    @invariant()
    def balanced(self) -> None:
        assert self.store.imbalance() == 0

    def teardown(self) -> None:
        """All ends and accounting has caught up: use is exact, and stays so."""
        for run in self.runs:
            run.end_s = self.now_s if run.end_s is None else run.end_s
        for seconds in (_LATEST_S, LOST_AFTER_S):
            self.now_s += seconds
            self.look_at_jobs()
            self.turn(accounting=True, booked=3)
        self._check_exact()
        for charges in self.decided:
            assert self.store.apply(charges) == frozenset()
        self.turn(accounting=True, booked=3)
        self._check_exact()

    def _check_exact(self) -> None:
        assert self.store.open_reservations() == ()
        assert self.store.imbalance() == 0
        statement = self.store.statement(None, 0, self.now_s)
        got = {row.run.key: (row.run.tenant, row.used_millislice_s) for row in statement.rows}
        runs = {
            RunKey(self.cluster, run.job_id, run.start_s): run for run in self.runs if run.charged
        }
        assert got.keys() == runs.keys()
        for key, (tenant, used) in got.items():
            assert tenant == runs[key].account
            least, most = _bounds(runs[key])
            assert least <= used <= most


def _bounds(run: SimulatedRun) -> tuple[int, int]:
    """What may be charged: exactly its use, or where accounting lost it up to ``known_s``."""
    assert run.end_s is not None
    assert run.known_s is not None
    least = (run.end_s - run.start_s) * run.cost
    return least, (run.known_s - run.start_s) * run.cost if run.lost else least
