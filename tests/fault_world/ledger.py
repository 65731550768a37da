"""The ledger of a world, and a process's connection to it, over which calls may fail."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builders.ledger_parts import PARTS
from stand_ins.memory_ledger import MemoryStore, OverdrawnError, balance

from fault_world.link import Link
from fault_world.virtual_time import WorldClock
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID
from slicewise.slurm_plugin.rules.accounting.types import Account, Charge, Reservation, RunKey
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding
from slicewise.slurm_plugin.rules.quota.calendar import Window, loosely_within
from slicewise.slurm_plugin.rules.quota.lending import called_back
from slicewise.slurm_plugin.rules.quota.tenants import changed
from slicewise.slurm_plugin.rules.quota.types import (
    KnownLimit,
    LimitKey,
    Loan,
    Policy,
    Recall,
    TenantUpdate,
)


@dataclass
class SiteLedger(MemoryStore):
    """PostgreSQL's rules, in memory: each method is one transaction.

    Attributes:
        lock: the connection that compiles now.
        locked_s: when it began to, in seconds since the beginning.
        windows_now: the calendar's.
        refuses: whether a charge of the job of this id is refused now.
    """

    clock: WorldClock = field(default_factory=WorldClock)
    tenants_now: Policy = field(default_factory=dict)
    newest: int = 1
    compiled_id: int = 0
    lent: tuple[Loan, ...] = ()
    called: tuple[Recall, ...] = ()
    remembered: dict[LimitKey, KnownLimit] = field(default_factory=dict)
    lock: "LedgerConnection | None" = None
    locked_s: float = 0.0
    windows_now: tuple[Window, ...] = ()
    refuses: Callable[[int], bool] = lambda _job_id: False
    _open: tuple[Reservation, ...] | None = None

    def require_current(self) -> None: ...

    def policy(self) -> Policy:
        return self.tenants_now

    def change_id(self) -> int:
        return self.newest

    def change(self, update: TenantUpdate, author: str = "op", reason: str = "") -> None:
        self.tenants_now = changed(self.tenants_now, update)
        self.newest += 1
        self.replace(self.lent, reason, self.called)

    def not_over(self) -> tuple[Window, ...]:
        now_s = self.clock.now_s
        return tuple(one for one in self.windows_now if now_s < (one.last_s or 0))

    def outstanding(self) -> tuple[Loan, ...]:
        return self.lent

    def recalls(self) -> tuple[Recall, ...]:
        return self.called

    def replace(
        self, loans: Sequence[Loan], reason: str, recalls: Sequence[Recall] | None = None
    ) -> tuple[tuple[Loan, ...], tuple[Recall, ...]]:
        allowed = loosely_within(self.tenants_now, self.not_over(), loans)
        self.lent = tuple(sorted(one for one in allowed if one.amount_millislices))
        if recalls is not None:
            amounts: Counter[tuple[str, str, int]] = Counter()
            for one in (*recalls, *called_back(loans, allowed, int(self.clock.now_s))):
                if {one.lender, one.borrower} <= self.tenants_now.keys():
                    amounts[one.lender, one.borrower, one.called_s] += one.amount_millislices
            self.called = tuple(
                Recall(lender, borrower, Millislices(amount), at_s)
                for (lender, borrower, at_s), amount in sorted(amounts.items())
            )
        return self.lent, self.called

    def known(self) -> Mapping[LimitKey, KnownLimit]:
        return dict(self.remembered)

    def know(self, known: Mapping[LimitKey, KnownLimit]) -> None:
        self.remembered |= known

    def mark_compiled(self, change_id: int) -> None:
        self.compiled_id = max(self.compiled_id, change_id)

    def is_uninstalled(self) -> bool:
        return self.compiled_id == UNINSTALLED_ID

    def post(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        if any(self.refuses(one.run.key.job_id) for one in charges):
            raise OutsideError("SW-LEDGER-REFUSED", "This charge is refused.")
        before, self._open = dict(self.booked), None
        try:
            return super().post(charges)
        except OverdrawnError as error:
            self.booked = before
            raise OutsideError("SW-LEDGER-REFUSED", f"overdrawn: {error}") from None

    def open_reservations(self) -> tuple[Reservation, ...]:
        if self._open is None:
            self._open = super().open_reservations()
        return self._open

    def accounted_until_s(self) -> int:
        if not self.watermark_s:
            self.watermark_s = int(self.clock.now_s)
        return self.watermark_s

    def holdings(self, since_s: int) -> tuple[Holding, ...]:
        found = []
        for one in self.booked.values():
            is_open = balance(one.transfers, Account.RESERVED) != 0
            end_s = one.transfers[-1].until_s
            if is_open or end_s >= since_s:
                run = one.run
                until_s = None if is_open else end_s
                found.append(Holding(run.tenant, run.cost_millislices, run.key.start_s, until_s))
        return tuple(found)


_CHANGES = frozenset({"replace", "know", "mark_compiled", "enter", "change"})
"""What is worth a line of the trace."""


class LedgerConnection:
    """A ledger as one process has it; also each of its parts."""

    def __init__(self, ledger: SiteLedger, link: Link) -> None:
        self._ledger, self._link = ledger, link

    def __getattr__(self, name: str) -> Any:
        if name in PARTS:
            return self
        value = getattr(self._ledger, name)
        return self._asked(name, value) if callable(value) else value

    def _asked(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **options: Any) -> Any:
            return self._link.call(
                "postgresql",
                f"ledger.{name}",
                lambda: call(*arguments, **options),
                changes=name in _CHANGES,
            )

        return asked

    def compiling(self) -> "CompilingLock":
        return CompilingLock(self._ledger, self, self._link)

    def leave(self) -> None:
        """The server notices that the process is gone."""
        if self._ledger.lock is self:
            self._ledger.lock = None


class CompilingLock:
    """The turn to compile, which one process has at a time."""

    def __init__(self, ledger: SiteLedger, connection: LedgerConnection, link: Link) -> None:
        self._ledger, self._connection, self._link = ledger, connection, link

    def hold(self) -> bool:
        return self._link.call("postgresql", "lock", self._take, changes=False)

    def _take(self) -> bool:
        if self._ledger.lock is None:
            self._ledger.lock = self._connection
            self._ledger.locked_s = self._ledger.clock.passed_s
        return self._ledger.lock is self._connection

    def give_up(self) -> None:
        self._connection.leave()
