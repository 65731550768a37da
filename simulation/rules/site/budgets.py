"""Meters what a simulated site's jobs use up of budgets, as the ledger does, and begins periods.

The product decides each entry (``charging.charge``, ``budgets``); here they are values. Only runs
that are new or have ended since the last look are charged: for others nothing is to be entered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slicewise.cluster.language.gres import tres_name
from slicewise.cluster.language.jobs import JobView, RunRecord
from slicewise.cluster.language.periods import period_start_s
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.simulation.rules.slurm_model.job_records import EndedRun
from slicewise.slurm_plugin.rules.accounting.budgets import (
    due_periods,
    due_rollover,
    posts_until,
    unspent,
)
from slicewise.slurm_plugin.rules.accounting.charging import Rates, charge
from slicewise.slurm_plugin.rules.accounting.lost_runs import LIVE
from slicewise.slurm_plugin.rules.accounting.types import (
    DEBIT_CREDIT,
    PAYERS,
    Account,
    Balance,
    Charge,
    Reservation,
    RunKey,
)
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder
from slicewise.slurm_plugin.rules.quota.types import Policy


class SiteBudgets:
    """Balances and open reservations of a site's budgets, as of the last look.

    Attributes:
        rollovers: the start of the period that each budget is in, in Unix seconds.
    """

    def __init__(
        self, policy: Policy, rates: Rates, zone: str, now_s: float, spent: Mapping[str, int]
    ) -> None:
        """Begin with running periods of which ``spent`` millislice-seconds are used up."""
        self._budgets = {name: tenant.budget for name, tenant in policy.items() if tenant.budget}
        self._zone, self._rates = zone, rates
        self._sums: Counter[tuple[str, Account]] = Counter()
        self._held: dict[RunKey, Reservation] = {}
        self._limits_s: dict[RunKey, int | None] = {}
        self._seen: Sequence[JobView] = ()
        self.rollovers: dict[str, int] = {}
        for name, budget in self._budgets.items():
            self.rollovers[name] = period_start_s(budget.period, int(now_s), self._zone)
            self._grant(name, budget.amount)
            self._sums[name, Account.AVAILABLE] -= spent.get(name, 0)

    @property
    def balances(self) -> Mapping[str, Balance]:
        """The balance of every tenant with a budget."""
        return {name: self._balance(name) for name in self._budgets}

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The runs that go on."""
        return tuple(self._held.values())

    def follow(self, jobs: Sequence[JobView], ended: Iterable[EndedRun], now_s: float) -> None:
        """Charge what ran since the last look, and begin the periods that are due."""
        if not self._budgets:
            return
        records = tuple(self._record(run) for run in ended if run.start_s is not None)
        # A job that is the very same object has not changed since.
        seen, self._seen = set(map(id, self._seen)), jobs
        changed = [job for job in jobs if id(job) not in seen]
        self._charge([job for job in changed if self._is_news(job)], records)
        periods = {budget.period for budget in self._budgets.values()}
        of_period = {period: period_start_s(period, int(now_s), self._zone) for period in periods}
        starts_s = {name: of_period[budget.period] for name, budget in self._budgets.items()}
        due = due_periods(self.rollovers, starts_s)
        for post in posts_until(due, jobs, int(now_s), self.reservations) if due else ():
            self._apply(post)
        for name, start_s in due.items():
            self._roll(name, start_s, records)

    def _is_news(self, job: JobView) -> bool:
        """Whether it is a run that nothing is reserved for, or one with another time limit."""
        if job.state not in LIVE or job.start_s is None:
            return False
        key = self._key(job.job_id, job.start_s)
        return key not in self._limits_s or self._limits_s[key] != job.time_limit_s

    def _charge(self, jobs: Sequence[JobView], records: Sequence[RunRecord]) -> None:
        over = [self._key(record.job_id, record.start_s) for record in records]
        keys = [*over, *(self._key(job.job_id, job.start_s or 0) for job in jobs)]
        held = [self._held[key] for key in keys if key in self._held]
        for due_charge in charge(self._rates, jobs, records, held, {}).charges:
            self._apply(due_charge)
        for job in jobs:
            self._limits_s[self._key(job.job_id, job.start_s or 0)] = job.time_limit_s
        for key in over:
            self._limits_s.pop(key, None)

    def _apply(self, due_charge: Charge) -> None:
        run, held = due_charge.run, self._held.pop(due_charge.run.key, None)
        moved: Counter[Account] = Counter()
        for transfer in due_charge.transfers:
            debit, credit = DEBIT_CREDIT[transfer.kind]
            moved[debit] -= transfer.amount
            moved[credit] += transfer.amount
        for account, amount in moved.items():
            owner = run.payer if account in PAYERS else run.tenant
            self._sums[owner, account] += amount
        reserved = moved[Account.RESERVED] + (held.reserved_millislice_s if held else 0)
        if reserved:
            self._held[run.key] = Reservation(
                run.key,
                run.tenant,
                run.user,
                run.task,
                run.gres,
                run.cost_millislices,
                run.payer,
                MillisliceSeconds(reserved),
                MillisliceSeconds(moved[Account.USED] + (held.posted_millislice_s if held else 0)),
                due_charge.after + len(due_charge.transfers),
            )

    def _roll(self, name: str, start_s: int, records: Iterable[RunRecord]) -> None:
        used = sum(
            run_cost(record.gpus, self._rates.costs) * (end_s - max(record.start_s, start_s))
            for record in records
            if self._rates.payers.get(by := holder(record.account, record.qos), by) == name
            and (end_s := record.end_s or 0) > start_s
        )
        entry = due_rollover(
            name,
            self._budgets[name],
            period_start_s=start_s,
            last_rollover_s=self.rollovers[name],
            unspent_amount=unspent(self._balance(name)),
            used_since_amount=used,
            reason="",
        )
        self._grant(name, entry.amount)
        self.rollovers[name] = start_s

    def _grant(self, name: str, amount: int) -> None:
        self._sums[name, Account.GRANTED] -= amount
        self._sums[name, Account.AVAILABLE] += amount

    def _balance(self, name: str) -> Balance:
        granted, *others = (self._sums[name, account] for account in _SHOWN)
        return Balance(name, -granted, *others)

    def _key(self, job_id: int, start_s: int) -> RunKey:
        return RunKey(self._rates.cluster, job_id, start_s)

    def _record(self, run: EndedRun) -> RunRecord:
        """The run as accounting would show it, in whole seconds."""
        return RunRecord(
            job_id=run.job_id,
            task=str(run.job_id),
            user=run.user,
            account=run.account,
            partition=run.partition,
            start_s=int(run.start_s or 0),
            end_s=int(run.end_s),
            state=run.state,
            time_limit_s=None,
            tres={tres_name(kind): str(count) for kind, count in run.gpus.items() if kind},
            qos=run.qos,
        )


_SHOWN = (
    Account.GRANTED,
    Account.AVAILABLE,
    Account.RESERVED,
    Account.USED,
    Account.WAIVED,
)
"""A balance's accounts, in the order of its fields."""
