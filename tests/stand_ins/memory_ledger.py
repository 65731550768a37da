"""The ledger's rules in a few lines of Python, and a daemon that dies between two writes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from builders.ledger_parts import LedgerParts

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.slurm_plugin.rules.accounting.budgets import unspent
from slicewise.slurm_plugin.rules.accounting.lost_runs import LostRun
from slicewise.slurm_plugin.rules.accounting.overview import used_since
from slicewise.slurm_plugin.rules.accounting.statement import open_row, totals
from slicewise.slurm_plugin.rules.accounting.types import (
    DEBIT_CREDIT,
    PAYERS,
    Account,
    Balance,
    BudgetEntry,
    Charge,
    Reservation,
    Run,
    RunKey,
    Statement,
    StatementRow,
    Transfer,
    Verification,
)


class Store(Protocol):
    """The parts of a ledger that the loop needs."""

    charges: Any
    budgets: Any
    audit: Any
    shares: Any
    pools: Any


class OverdrawnError(Exception):
    """More was posted, waived, voided or reversed than was reserved or used."""


@dataclass
class MemoryStore(LedgerParts):
    """A ledger in memory, with which PostgreSQL's tables and triggers must agree."""

    booked: dict[RunKey, Charge] = field(default_factory=dict)
    entered: list[BudgetEntry] = field(default_factory=list)
    watermark_s: int = 0
    lost: Mapping[RunKey, LostRun] = field(default_factory=dict)
    newest: int = 0
    recorded: tuple[GenerationRecord, ...] = ()

    def post(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        fresh = [one for one in charges if len(self._transfers(one.run.key)) == one.after]
        for one in fresh:
            together = (*self._transfers(one.run.key), *one.transfers)
            if any(
                balance(together[:end], account) < 0
                for end in range(len(together) + 1)
                for account in (Account.RESERVED, Account.USED)
            ):
                raise OverdrawnError(one)
            known = self.booked.get(one.run.key)
            self.booked[one.run.key] = Charge(known.run if known else one.run, 0, together)
        return frozenset(one.run.key for one in fresh)

    def seal(self) -> int:
        return 0

    def _transfers(self, key: RunKey) -> tuple[Transfer, ...]:
        return self.booked[key].transfers if key in self.booked else ()

    def open_reservations(self) -> tuple[Reservation, ...]:
        charges = (one for _, one in sorted(self._of(SLICES.name).items()))
        return tuple(_reservation(one) for one in charges if _is_open(one))

    def _of(self, meter: str) -> Mapping[RunKey, Charge]:
        return {key: one for key, one in self.booked.items() if key.meter == meter}

    def lost_runs(self, monotonic_s: float) -> Mapping[RunKey, LostRun]:
        return {
            key: replace(one, since_s=monotonic_s - one.since_s) for key, one in self.lost.items()
        }

    def keep_lost_runs(self, found: Mapping[RunKey, LostRun], monotonic_s: float) -> None:
        self.lost = {
            key: replace(one, since_s=monotonic_s - one.since_s) for key, one in found.items()
        }

    def accounted_until_s(self) -> int:
        return self.watermark_s

    def set_accounted_until_s(self, second: int) -> None:
        self.watermark_s = max(self.watermark_s, second)

    def balances(self, meter: str = SLICES.name) -> Mapping[str, Balance]:
        names = {entry.tenant for entry in self.entered if entry.meter == meter}
        for one in self._of(meter).values():
            names |= {one.run.tenant, one.run.payer}
        return {name: self._balance(name, meter) for name in sorted(names)}

    def _balance(self, tenant: str, meter: str) -> Balance:
        entered = [one for one in self.entered if (one.tenant, one.meter) == (tenant, meter)]
        granted = sum(one.amount for one in entered)
        sums = {
            account: sum(
                balance(one.transfers, account)
                for one in self._of(meter).values()
                if tenant == (one.run.payer if account in PAYERS else one.run.tenant)
            )
            for account in Account
        }
        return Balance(
            tenant,
            granted=granted,
            available=granted + sums[Account.AVAILABLE],
            reserved=sums[Account.RESERVED],
            used=sums[Account.USED],
            waived=sums[Account.WAIVED],
        )

    def rollovers(self, meter: str = SLICES.name) -> Mapping[str, int]:
        return {
            one.tenant: one.period_start_s
            for one in self.entered
            if (one.kind, one.meter) == ("roll", meter) and one.period_start_s is not None
        }

    def renewed(self, meter: str = SLICES.name) -> Mapping[str, int]:
        return {}

    def enter(
        self,
        entry: BudgetEntry,
        unspent_amount: int | None,
        change_id: int | None = None,
    ) -> bool:
        now = unspent(self._balance(entry.tenant, entry.meter))
        rolled = any(
            (one.tenant, one.meter, one.period_start_s)
            == (entry.tenant, entry.meter, entry.period_start_s)
            for one in self.entered
            if entry.kind == one.kind == "roll"
        )
        if entry.key is not None and entry.key in {one.key for one in self.entered}:
            return True
        is_of_another = change_id not in {None, self.newest}
        if rolled or is_of_another or unspent_amount not in {None, now}:
            return False
        self.entered.append(entry)
        return True

    def statement(self, tenant: str | None, since_s: int, now_s: int) -> Statement:
        charges = sorted(
            self._of(SLICES.name).values(), key=lambda one: (one.run.tenant, one.run.key)
        )
        rows = tuple(
            self._shown(one, now_s)
            for one in charges
            if tenant in (None, one.run.tenant, one.run.payer)
        )
        rows = tuple(row for row in rows if row.end_s is None or row.end_s >= since_s)
        return Statement(rows, totals(rows))

    def _shown(self, one: Charge, now_s: int) -> StatementRow:
        array, tenant = int(one.run.task.partition("_")[0]), one.run.tenant
        of_array = (of for of in self.recorded if (of.array_job_id, of.tenant) == (array, tenant))
        return replace(_row(one, now_s), service=next((of.name for of in of_array), ""))

    def used_of_budget(self, payer: str, since_s: int, now_s: int) -> int:
        return used_since(self.statement(None, since_s, now_s).rows, payer, since_s)

    def statement_page(
        self,
        tenant: str | None,
        since_s: int,
        now_s: int,
        after: tuple[str, int, int] | None,
        rows: int,
        *,
        until_s: int | None = None,
        accounts: Collection[str] | None = None,
    ) -> tuple[StatementRow, ...]:
        def place(row: StatementRow) -> tuple[str, int, int]:
            return row.run.tenant, row.run.key.start_s, row.run.key.job_id

        found = sorted(self.statement(tenant, since_s, now_s).rows, key=place)
        wanted = (
            row
            for row in found
            if (accounts is None or row.run.tenant in accounts)
            and (until_s is None or row.run.key.start_s < until_s)
        )
        return tuple(row for row in wanted if after is None or place(row) > after)[:rows]

    def charged_tenants(self) -> frozenset[str]:
        return frozenset(one.run.tenant for one in self._of(SLICES.name).values())

    def verify(self) -> Verification:
        off = sum(
            abs(sum(balance(one.transfers, account) for account in Account))
            for one in self.booked.values()
        )
        transfers = sum(len(one.transfers) for one in self.booked.values())
        return Verification(transfers, 0, len(self.open_reservations()), off, ())


def balance(transfers: Sequence[Transfer], account: Account) -> MillisliceSeconds:
    """An account's credits less its debits."""
    total = 0
    for transfer in transfers:
        debit, credit = DEBIT_CREDIT[transfer.kind]
        total += transfer.amount * ((account == credit) - (account == debit))
    return MillisliceSeconds(total)


def _is_open(one: Charge) -> bool:
    return balance(one.transfers, Account.RESERVED) != 0


def _reservation(one: Charge) -> Reservation:
    values = {name: getattr(one.run, name) for name in Run.__dataclass_fields__}
    return Reservation(
        **values,
        reserved_millislice_s=balance(one.transfers, Account.RESERVED),
        posted_millislice_s=balance(one.transfers, Account.USED),
        transfers=len(one.transfers),
    )


def _row(one: Charge, now_s: int) -> StatementRow:
    if _is_open(one):
        return open_row(_reservation(one), now_s)
    return StatementRow(
        one.run,
        end_s=one.transfers[-1].until_s,
        used_millislice_s=balance(one.transfers, Account.USED),
        waived_millislice_s=balance(one.transfers, Account.WAIVED),
        reserved_millislice_s=MillisliceSeconds(0),
    )


class CrashError(Exception):
    """The daemon dies."""


@dataclass
class CrashingStore:
    """A store that lets ``writes`` writes through, then dies in the middle of the next.

    ``rolled``: the rolls that it let through, and what was unspent before each.
    """

    store: Store
    writes: int
    rolled: list[tuple[BudgetEntry, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.charges, self.budgets = _CrashingCharges(self), _CrashingBudgets(self)
        self.audit, self.shares = self.store.audit, self.store.shares
        self.pools = self.store.pools

    def write(self) -> None:
        if not self.writes:
            raise CrashError
        self.writes -= 1


@dataclass
class _CrashingCharges:
    of: CrashingStore

    def __getattr__(self, name: str) -> object:
        return getattr(self.of.store.charges, name)

    def post(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        if not self.of.writes:
            self.of.store.charges.post(charges[:1])
        self.of.write()
        return self.of.store.charges.post(charges)

    def set_accounted_until_s(self, second: int) -> None:
        self.of.write()
        self.of.store.charges.set_accounted_until_s(second)


@dataclass
class _CrashingBudgets:
    of: CrashingStore

    def __getattr__(self, name: str) -> object:
        return getattr(self.of.store.budgets, name)

    def enter(
        self, entry: BudgetEntry, unspent_amount: int | None, change_id: int | None = None
    ) -> bool:
        self.of.write()
        booked = self.of.store.budgets.enter(entry, unspent_amount, change_id)
        if booked:
            self.of.rolled.append((entry, unspent_amount))
        return booked
