"""A small Slurm with its accounting, and everything that can happen between it and a ledger."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stand_ins.memory_ledger import CrashError, CrashingStore, MemoryStore, Store

from builders.jobs import a_running_job
from builders.tenants import tenant
from slicewise.cluster.language.jobs import JobState, JobView, RunRecord
from slicewise.cluster.language.meters import Meter
from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.quota_cycle.rollover import roll_over_budgets
from slicewise.slurm_plugin.rules.accounting.budgets import amended, unspent
from slicewise.slurm_plugin.rules.accounting.charging import (
    ACCOUNTING_DELAY_S,
    Rates,
    charge,
    next_watermark_s,
)
from slicewise.slurm_plugin.rules.accounting.lost_runs import (
    LOST_AFTER_S,
    LostRun,
    live_runs,
    lost_ends,
    lost_runs,
)
from slicewise.slurm_plugin.rules.accounting.types import (
    Balance,
    BudgetEntry,
    Charge,
    Reservation,
    Run,
    RunKey,
    StatementRow,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Budget

PARTITION = "gpu"
COSTS = {"1g.10gb": Millislices(1000), "1g.20gb": Millislices(1750), "3g.40gb": Millislices(3500)}
START_S = 1_600_000_000
"""A time long ago: a history goes on for years, and accounting must not cover future seconds."""
ZONE = "Europe/Berlin"
TENANTS = ("tenant0", "tenant1", "lone")
TOKENS = Meter("tokens", "tokens", 1)
"""A second meter, whose amounts are no slices."""


@dataclass
class SimulatedRun:
    """One run of a job, and its fate.

    Accounting shows the run's end ``delay_s`` later, at ``visible_s``, and may date the end
    ``back_s`` earlier. ``failed``: a failure of the node ends the run. ``lost``: accounting loses
    the run. ``known_s``: the first look at Slurm without the run.
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
    delay_s: int = 0
    back_s: int = 0
    failed: bool = False
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
        return TENANTS[self.job_id % len(TENANTS)]


def job_view(run: SimulatedRun) -> JobView:
    return a_running_job(
        run.job_id,
        run.account,
        partition=run.partition,
        qos="normal",
        state=run.state,
        admin_comment="",
        tres=run.tres,
        submit_s=run.start_s,
        start_s=run.start_s,
        eligible_s=run.start_s,
        time_limit_s=run.limit_s,
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
        state=("NODE_FAIL" if run.failed else "COMPLETED") if ended else "RUNNING",
        time_limit_s=run.limit_s,
        tres=run.tres,
    )


@dataclass
class Lease:
    """Tokens that were set aside at once and are used bit by bit, and its transfers' number."""

    run: Run
    reserved: int = 0
    used: int = 0
    steps: int = 0

    def follow(self, steps: Sequence[tuple[TransferKind, int]]) -> None:
        for kind, amount in steps:
            self.reserved += amount if kind is TransferKind.RESERVE else -amount
            self.used += amount if kind is TransferKind.POST else 0
        self.steps += len(steps)


_LIMITS = st.none() | st.integers(1, 7200)
_GRES = st.sampled_from(
    ({"1g.10gb": 1}, {"1g.20gb": 3}, {"3g.40gb": 1}, {"1g.10gb": 2, "3g.40gb": 1}, {})
)
_PARTITIONS = st.sampled_from((PARTITION,) * 4 + ("cpu",))
_JOBS = st.integers(1, 3)
_LATEST_S = 10 * ACCOUNTING_DELAY_S
_DELAYS = st.integers(0, ACCOUNTING_DELAY_S) | st.integers(0, _LATEST_S)
"""Seconds until accounting shows an end. After ``ACCOUNTING_DELAY_S`` only reserved runs are
found."""
_BACK = st.just(0) | st.integers(0, ACCOUNTING_DELAY_S - 1)
_MANY = 1000


_AMOUNTS = st.integers(0, 10**8).map(MillisliceSeconds)
_BUDGETS = st.builds(Budget, st.sampled_from(Period), _AMOUNTS, _AMOUNTS)


class World(RuleBasedStateMachine):
    """A Hypothesis state machine of all that can happen.

    Runs start, end, are requeued, and get other limits. Nodes fail. Accounting is late and
    back-dates. Looks are stale, budgets roll and change, the daemon crashes between any two writes,
    and decisions are replayed.
    """

    cluster = "simulated"
    make_store: Callable[[], Store] = MemoryStore

    @initialize(node_failure=st.sampled_from(("tenant", "operator")), budget=_BUDGETS)
    def begin(self, node_failure: Literal["tenant", "operator"], budget: Budget) -> None:
        self.now_s = START_S
        self.runs: list[SimulatedRun] = []
        self.store = self.make_store()
        self.store.charges.set_accounted_until_s(START_S - 1)
        self.node_failure = node_failure
        self.policy = {
            name: tenant(name, parent="" if name in ("group", "lone") else "group")
            for name in ("group", *TENANTS)
        }
        self._give("group", budget)
        self.granted: dict[str, int] = {}
        self.rolled: dict[str, int] = {}
        self.decided: list[tuple[Charge, ...]] = []
        self.looked: tuple[int, tuple[JobView, ...]] = (START_S, ())
        self.gone: Mapping[RunKey, LostRun] = {}
        self.leases: dict[RunKey, Lease] = {}
        self.granted_tokens: dict[str, int] = {}

    def _give(self, tenant: str, budget: Budget | None) -> None:
        self.policy[tenant] = replace(self.policy[tenant], budget=budget)

    @property
    def rates(self) -> Rates:
        pay = payers(self.policy)
        return Rates(self.cluster, frozenset({PARTITION}), COSTS, pay, self.node_failure)

    def _running(self, job_id: int) -> SimulatedRun | None:
        own = (run for run in self.runs if run.job_id == job_id and run.end_s is None)
        return next(own, None)

    @rule(seconds=st.integers(1, 3000))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(period=st.sampled_from(("day", "week", "month")), seconds=st.integers(-100, 100))
    def time_passes_to_the_end_of_a_period(self, period: str, seconds: int) -> None:
        begins_s = next_start_s(period, self.now_s, ZONE)
        assert begins_s is not None
        self.now_s = max(self.now_s, begins_s + seconds)

    @rule(
        job_id=_JOBS,
        gres=_GRES,
        limit_s=_LIMITS,
        partition=_PARTITIONS,
        fate=st.builds(dict, delay_s=_DELAYS, back_s=_BACK, failed=st.booleans()),
    )
    def start_or_requeue(
        self,
        job_id: int,
        gres: Mapping[str, int],
        limit_s: int | None,
        partition: str,
        fate: Mapping[str, int],
    ) -> None:
        self.end(job_id)
        if any(run.job_id == job_id and run.start_s == self.now_s for run in self.runs):
            self.now_s += 1
        self.runs.append(SimulatedRun(job_id, self.now_s, gres, partition, limit_s, **fate))

    @rule(period=st.sampled_from(("day", "week", "month")))
    def a_period_begins_while_all_is_well(self, period: str) -> None:
        self.all_is_well()
        self.time_passes_to_the_end_of_a_period(period, 30)
        self.all_is_well()

    @rule(period=st.sampled_from(("day", "week", "month")), gres=_GRES, job_id=_JOBS)
    def a_period_begins_while_the_daemon_is_away(
        self, period: str, gres: Mapping[str, int], job_id: int
    ) -> None:
        self.all_is_well()
        self.time_passes_to_the_end_of_a_period(period, 30)
        self.start_or_requeue(job_id, gres, 7200, PARTITION, {})
        self.time_passes(600)
        self.end(job_id)
        self.all_is_well()

    @rule(job_id=_JOBS)
    def end(self, job_id: int) -> None:
        run = self._running(job_id)
        if run is not None:
            self._end(run)

    def _end(self, run: SimulatedRun) -> None:
        delay_s = run.delay_s
        if self._reservation(run) is None:
            delay_s = min(delay_s, ACCOUNTING_DELAY_S - run.back_s)
        run.end_s = max(run.start_s, self.now_s - run.back_s)
        run.visible_s = self.now_s + delay_s

    @rule(job_id=_JOBS)
    def end_and_be_lost(self, job_id: int) -> None:
        """End a run that accounting then loses, no later than what is reserved for it covers.

        Slurm ends runs at their time limits, and no less than that is reserved.
        """
        run = self._running(job_id)
        held = self._reservation(run) if run is not None else None
        if run is not None and held is not None:
            covered = held.posted_millislice_s + held.reserved_millislice_s
            run.end_s = min(self.now_s, run.start_s + covered // held.cost_millislices)
            run.lost, run.failed = True, False

    def _reservation(self, run: SimulatedRun) -> Reservation | None:
        key = RunKey(self.cluster, run.job_id, run.start_s)
        return next(
            (held for held in self.store.charges.open_reservations() if held.key == key), None
        )

    @rule()
    def restart(self) -> None:
        """Restart the daemon, which forgets what it remembered."""
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

    @rule(tenant=st.sampled_from(("group", "tenant1")), budget=st.none() | _BUDGETS)
    def change_budget(self, tenant: str, budget: Budget | None) -> None:
        before = self.policy[tenant].budget
        self._give(tenant, budget)
        if budget is None:
            return
        had = self._unspent(tenant)
        entry = amended(
            tenant,
            before,
            budget,
            period_start_s=period_start_s(budget.period, self.now_s, ZONE),
            last_rollover_s=self.store.budgets.rollovers().get(tenant),
            unspent_amount=had,
            author="olga",
            reason="",
        )
        if entry is not None:
            assert not self.store.budgets.enter(entry, had + 1)
            assert self.store.budgets.enter(entry, had)
            self._follow(entry)

    @rule(tenant=st.sampled_from(("group", *TENANTS)), amount=st.integers(-(10**7), 10**7))
    def grant(self, tenant: str, amount: int) -> None:
        entry = BudgetEntry(tenant, "grant", amount, None, "olga", "for the deadline")
        if amount:
            assert self.store.budgets.enter(entry, None)
            self._follow(entry)

    @rule(tenant=st.sampled_from(("group", *TENANTS)), amount=st.integers(-(10**7), 10**7))
    def grant_tokens(self, tenant: str, amount: int) -> None:
        entry = BudgetEntry(tenant, "grant", amount, None, "olga", "", meter=TOKENS.name)
        if amount:
            had = unspent(self.store.budgets.balances(TOKENS.name).get(tenant))
            assert not self.store.budgets.enter(entry, had + 1)
            assert self.store.budgets.enter(entry, had)
            self.granted_tokens[tenant] = self.granted_tokens.get(tenant, 0) + amount

    @rule(job_id=_JOBS, payer=st.sampled_from(TENANTS), tokens=st.integers(1, 10**9))
    def lease_tokens(self, job_id: int, payer: str, tokens: int) -> None:
        """The number and start may well be those of a job's run."""
        key = RunKey(self.cluster, job_id, self.now_s, TOKENS.name)
        tenant = TENANTS[job_id % len(TENANTS)]
        run = Run(key, tenant, "alice", "chat", {}, Millislices(0), payer)
        lease = self.leases.setdefault(key, Lease(run))
        if not lease.steps:
            self._move(lease, (TransferKind.RESERVE, tokens))

    @rule(which=st.integers(0, 100), used=st.integers(0, 10**9), over=st.booleans())
    def use_tokens(self, which: int, used: int, over: bool) -> None:
        open_leases = [lease for lease in self.leases.values() if lease.reserved]
        if not open_leases:
            return
        lease = open_leases[which % len(open_leases)]
        used = min(used, lease.reserved)
        rest = lease.reserved - used if over else 0
        steps = ((TransferKind.POST, used), (TransferKind.VOID, rest))
        self._move(lease, *((kind, amount) for kind, amount in steps if amount))

    def _move(self, lease: "Lease", *steps: tuple[TransferKind, int]) -> None:
        moved = tuple(Transfer(kind, amount, self.now_s) for kind, amount in steps)
        if moved:
            charges = (Charge(lease.run, lease.steps, moved),)
            self.decided.append(charges)
            assert self.store.charges.post(charges) == {lease.run.key}
            assert self.store.charges.post(charges) == frozenset()
            lease.follow(steps)

    @rule()
    def all_is_well(self) -> None:
        self.look_at_jobs()
        self.turn(accounting=True, writes=_MANY)

    @rule()
    def look_at_jobs(self) -> None:
        live = (run for run in self.runs if run.end_s is None)
        self.looked = (self.now_s, tuple(job_view(run) for run in live))

    @rule(accounting=st.booleans(), writes=st.integers(0, 5) | st.just(_MANY))
    def turn(self, accounting: bool, writes: int) -> None:
        """Take a turn on the last look, however stale; the daemon dies after ``writes`` writes."""
        store = CrashingStore(self.store, writes)
        with suppress(CrashError):
            self._charge(store, accounting=accounting)
        with suppress(CrashError):
            jobs, looked_s = self.looked[1], self.looked[0]
            roll_over_budgets(store, self.policy, ZONE, jobs, looked_s, change_id=0)
        for entry, had in store.rolled:
            self._check_roll(entry, had)

    def _check_roll(self, entry: BudgetEntry, had: int) -> None:
        """Check a roll that begins a period, at most once per period; ``had``: unspent before."""
        tenant, begins_s = entry.tenant, entry.period_start_s
        budget = self.policy[tenant].budget
        assert budget is not None
        assert begins_s is not None
        expected = budget.amount
        if tenant in self.rolled:
            since = self._used_since(tenant, begins_s)
            expected += min(had + since, budget.carry_over) - since
        assert self._unspent(tenant) == expected
        assert begins_s > self.rolled.get(tenant, -1)
        for held in self.store.charges.open_reservations():
            if held.payer == tenant:
                used = held.cost_millislices * (begins_s - held.key.start_s)
                assert held.posted_millislice_s >= used
        self.rolled[tenant] = begins_s
        self._follow(entry)

    def _used_since(self, payer: str, begins_s: int) -> int:
        """Millislice-seconds used since ``begins_s`` by ended runs for which ``payer`` pays."""
        return sum(
            row.used_millislice_s
            * (row.end_s - max(begins_s, row.run.key.start_s))
            // (row.end_s - row.run.key.start_s)
            for row in self.store.audit.statement(None, begins_s + 1, self.now_s).rows
            if row.run.payer == payer and row.end_s is not None and row.used_millislice_s
        )

    def _follow(self, entry: BudgetEntry) -> None:
        granted = self.granted.get(entry.tenant, 0) + entry.amount
        self.granted[entry.tenant] = granted

    def _unspent(self, tenant: str) -> int:
        return unspent(self.store.budgets.balances().get(tenant))

    def _charge(self, store: Store, *, accounting: bool) -> None:
        since_s = store.charges.accounted_until_s()
        lost = self._follow_gone()
        records = self._accounting(since_s) if accounting else ()
        reservations = store.charges.open_reservations()
        decided = charge(
            self.rates, self.looked[1], records, reservations, lost if accounting else {}
        )
        self.decided.append(decided.charges)
        store.charges.post(decided.charges)
        if accounting:
            still_open = store.charges.open_reservations()
            until_s = next_watermark_s(since_s, self.looked[0], self.looked[1], still_open)
            store.charges.set_accounted_until_s(until_s)

    def _follow_gone(self) -> Mapping[RunKey, int]:
        looked_s, jobs = self.looked
        held = self.store.charges.open_reservations()
        self.gone = lost_runs(self.gone, looked_s, looked_s, jobs, held)
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
        """Post an old decision again; it may only do what it would have done the first time."""
        if self.decided:
            self.store.charges.post(self.decided[which % len(self.decided)])

    @invariant()
    def balanced(self) -> None:
        verified = self.store.audit.verify()
        assert (verified.imbalance, verified.faults) == (0, ())
        rows = self.store.audit.statement(None, 0, self.now_s).rows
        held = self.store.charges.open_reservations()
        for name, balance in self.store.budgets.balances().items():
            assert balance == _balance_of(name, self.granted.get(name, 0), rows, held)
        assert all(one.reserved_millislice_s > 0 <= one.posted_millislice_s for one in held)

    @invariant()
    def tokens_are_balanced(self) -> None:
        leases = self.leases.values()
        names = {name for lease in leases for name in (lease.run.tenant, lease.run.payer)}
        balances = self.store.budgets.balances(TOKENS.name)
        assert balances.keys() == names | self.granted_tokens.keys()
        for name, balance in balances.items():
            paid = [lease for lease in leases if lease.run.payer == name]
            granted = self.granted_tokens.get(name, 0)
            reserved = sum(lease.reserved for lease in paid)
            assert balance == Balance(
                name,
                granted,
                granted - reserved - sum(lease.used for lease in paid),
                reserved,
                sum(lease.used for lease in leases if lease.run.tenant == name),
                0,
            )

    def teardown(self) -> None:
        """End all runs and let accounting catch up: use is then exact, and stays exact."""
        for run in self.runs:
            if run.end_s is None:
                self._end(run)
        for seconds in (_LATEST_S, LOST_AFTER_S):
            self.now_s += seconds
            self.look_at_jobs()
            self.turn(accounting=True, writes=_MANY)
        self._check_exact()
        for charges in self.decided:
            assert self.store.charges.post(charges) == frozenset()
        self.turn(accounting=True, writes=_MANY)
        self._check_exact()
        self.balanced()
        begun = {name for name, tenant in self.policy.items() if tenant.budget}
        assert begun <= self.rolled.keys()

    def _check_exact(self) -> None:
        assert self.store.charges.open_reservations() == ()
        assert self.store.audit.verify().imbalance == 0
        rows = {row.run.key: row for row in self.store.audit.statement(None, 0, self.now_s).rows}
        runs = {
            RunKey(self.cluster, run.job_id, run.start_s): run for run in self.runs if run.charged
        }
        assert rows.keys() == runs.keys()
        for key, row in rows.items():
            run = runs[key]
            assert row.run.tenant == run.account
            waived = self.node_failure == "operator" and run.failed
            charged, nothing = row.used_millislice_s, row.waived_millislice_s
            if waived:
                charged, nothing = nothing, charged
            least, most = _bounds(run)
            assert least <= charged <= most
            assert nothing == 0


def _balance_of(
    tenant: str, granted: int, rows: Sequence[StatementRow], held: Sequence[Reservation]
) -> Balance:
    """What a tenant's balance must be, by the runs that it pays for and by its own runs."""
    paid = [row for row in rows if row.run.payer == tenant]
    settled = [row for row in rows if row.run.tenant == tenant and row.end_s is not None]
    taken = sum(row.used_millislice_s + row.reserved_millislice_s for row in paid)
    reserved = sum(one.reserved_millislice_s for one in held if one.payer == tenant)
    posted = sum(one.posted_millislice_s for one in held if one.tenant == tenant)
    used = sum(row.used_millislice_s for row in settled)
    waived = sum(row.waived_millislice_s for row in settled)
    return Balance(
        tenant,
        granted=granted,
        available=granted - taken,
        reserved=reserved,
        used=used + posted,
        waived=waived,
    )


def _bounds(run: SimulatedRun) -> tuple[int, int]:
    """The least and most that may be charged: exactly the use; for a lost run up to ``known_s``."""
    assert run.end_s is not None
    assert run.known_s is not None
    least = (run.end_s - run.start_s) * run.cost
    return least, (run.known_s - run.start_s) * run.cost if run.lost else least
