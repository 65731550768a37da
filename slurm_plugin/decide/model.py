"""The ledger's words: runs, reservations, transfers, charges, budgets' entries, statements."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cluster.units import Millislices, MillisliceSeconds


@dataclass(frozen=True, order=True)
class RunKey:
    """One run of a job. A requeued job has several, told apart by their starts.

    Attributes:
        cluster: Slurm's ClusterName.
        job_id: Slurm's raw number; each task of an array has its own.
        start_s: Unix seconds.
    """

    cluster: str
    job_id: int
    start_s: int


@dataclass(frozen=True)
class Run:
    """Who runs what at which cost.

    Attributes:
        tenant: the Slurm account, which is charged.
        task: as people name it: ``814_3`` or ``814``.
        gres: GPU instances by type that Slurm allotted.
        cost_millislices: of all of them together.
        payer: whose budget it uses up: the tenant itself, or the tenant above it that has one.
    """

    key: RunKey
    tenant: str
    user: str
    task: str
    gres: Mapping[str, int] = field(hash=False)
    cost_millislices: Millislices
    payer: str


@dataclass(frozen=True)
class Reservation(Run):
    """A run that is not settled yet, and what is set aside for it.

    Attributes:
        reserved_millislice_s: still set aside, beside what is posted.
        posted_millislice_s: posted so far, less what was reversed.
        transfers: how many transfers the ledger has of this run.
    """

    reserved_millislice_s: MillisliceSeconds
    posted_millislice_s: MillisliceSeconds
    transfers: int


class Account(StrEnum):
    """The accounts of a tenant. Over all tenants their balances (credits − debits) sum to zero."""

    GRANTED = "granted"
    """Where a budget comes from: its balance is minus what was granted, net."""
    AVAILABLE = "available"
    """What is left to reserve; of a tenant without a budget minus what its runs took."""
    RESERVED = "reserved"
    USED = "used"
    WAIVED = "waived"
    """Allotted by Slurm but not charged to the tenant."""
    OPERATOR = "operator"
    """Who bears what is waived: its balance is minus that. No budget is used up by it."""


class TransferKind(StrEnum):
    """Steps of a run's life in the ledger: two-phase, as TigerBeetle's pending transfers.

    https://docs.tigerbeetle.com/coding/two-phase-transfers/
    """

    RESERVE = "reserve"
    """At the start: cost × time limit, available → reserved."""
    EXTEND = "extend"
    """More of the same: the time limit grew, or the run outlived it."""
    POST = "post"
    """At the end: the exact use, reserved → used."""
    VOID = "void"
    """At the end: what is left, reserved → available."""
    REVERSE = "reverse"
    """Accounting shows less than is posted: the excess, used → reserved."""
    WAIVE = "waive"
    """At the end of a run that the operator pays: the use, operator → waived. Its whole reservation
    is voided.
    """
    GRANT = "grant"
    """More budget: granted → available. Of no run."""
    REVOKE = "revoke"
    """Less budget: available → granted. Of no run."""


DEBIT_CREDIT: Mapping[TransferKind, tuple[Account, Account]] = {
    TransferKind.RESERVE: (Account.AVAILABLE, Account.RESERVED),
    TransferKind.EXTEND: (Account.AVAILABLE, Account.RESERVED),
    TransferKind.POST: (Account.RESERVED, Account.USED),
    TransferKind.VOID: (Account.RESERVED, Account.AVAILABLE),
    TransferKind.REVERSE: (Account.USED, Account.RESERVED),
    TransferKind.WAIVE: (Account.OPERATOR, Account.WAIVED),
    TransferKind.GRANT: (Account.GRANTED, Account.AVAILABLE),
    TransferKind.REVOKE: (Account.AVAILABLE, Account.GRANTED),
}
"""Which account each kind of transfer debits, which it credits."""

PAYERS = frozenset({Account.GRANTED, Account.AVAILABLE, Account.RESERVED})
"""Accounts of the run's payer; the others are the tenant's."""


@dataclass(frozen=True)
class Transfer:
    """An amount above zero that moves between two accounts of a run's payer and its tenant.

    Attributes:
        until_s: the Unix second up to which the run is covered: by a reservation its time limit,
            by a post or void its end.
    """

    kind: TransferKind
    amount_millislice_s: MillisliceSeconds
    until_s: int


@dataclass(frozen=True)
class Charge:
    """Transfers of one run, to be applied together or not at all.

    Attributes:
        after: how many transfers of this run there were when this was decided. The ledger applies
            a charge only if there are still as many: so an event that comes twice, or a decision
            on an old look at the ledger, changes nothing.
    """

    run: Run
    after: int
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True)
class Observation:
    """Something odd about a run that an operator should know; it was not silently taken."""

    key: RunKey
    text: str


@dataclass(frozen=True)
class Charging:
    """What ``charging.charge`` decided.

    Attributes:
        unpriced: GPU types that runs have and no cost is set for: they are charged nothing.
    """

    charges: tuple[Charge, ...]
    observations: tuple[Observation, ...]
    unpriced: frozenset[str]


@dataclass(frozen=True)
class StatementRow:
    """One run in a statement.

    Attributes:
        end_s: Unix seconds; None while it runs.
        used_millislice_s: posted, or used so far while it runs.
        waived_millislice_s: allotted, but not charged.
        reserved_millislice_s: set aside beyond that; 0 once it is settled.
    """

    run: Run
    end_s: int | None
    used_millislice_s: MillisliceSeconds
    waived_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds


@dataclass(frozen=True)
class TenantTotal:
    """The sum of a tenant's rows in a statement."""

    tenant: str
    runs: int
    running: int
    used_millislice_s: MillisliceSeconds
    waived_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds


@dataclass(frozen=True)
class Statement:
    """Runs in the order of their starts, and a total per tenant."""

    rows: tuple[StatementRow, ...]
    totals: tuple[TenantTotal, ...]


@dataclass(frozen=True)
class Balance:
    """A tenant's accounts as they stand, in millislice-seconds.

    Attributes:
        granted_millislice_s: what its budget was given, less what was taken back.
        available_millislice_s: granted, less what its budget's runs have reserved and used; below
            zero is an overdraft, or a tenant without a budget.
        reserved_millislice_s: set aside for running jobs that its budget pays for.
        used_millislice_s, waived_millislice_s: of its own runs, whoever pays.
    """

    tenant: str
    granted_millislice_s: MillisliceSeconds
    available_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds
    used_millislice_s: MillisliceSeconds
    waived_millislice_s: MillisliceSeconds


@dataclass(frozen=True)
class BalanceLine:
    """A tenant's accounts, and what its budget has left now; None without one."""

    balance: Balance
    left_millislice_s: int | None


@dataclass(frozen=True)
class BudgetEntry:
    """A budget was given or taken.

    Attributes:
        kind: ``roll`` at the start of a period, ``grant`` and ``adjust`` by an operator.
        amount_millislice_s: above zero is granted, below is taken back; a roll may be zero.
        period_start_s: of a roll: Unix seconds, 0 for a budget without periods; else None.
        at_s: when it was recorded; None before.
        key: by which whoever asks again is known: of a key the ledger has one entry. None: each
            time is another one.
    """

    tenant: str
    kind: Literal["roll", "grant", "adjust"]
    amount_millislice_s: int
    period_start_s: int | None
    author: str
    reason: str
    at_s: int | None = None
    key: str | None = None


@dataclass(frozen=True)
class Verification:
    """What replaying the whole log found.

    Attributes:
        transfers: how many were replayed.
        accounts: how many stored balances were compared.
        reservations: how many open ones were compared.
        imbalance_millislice_s: what does not add up, over everything, and 1 for each fault that is
            no amount; 0 iff all is well.
        faults: in words, the first few.
        sealed: how many transfers the chain of seals covers.
        seal: the newest hash, in hexadecimal: whoever keeps it elsewhere sees whether the chain
            itself was rewritten. "" if nothing is sealed.
    """

    transfers: int
    accounts: int
    reservations: int
    imbalance_millislice_s: int
    faults: tuple[str, ...]
    sealed: int = 0
    seal: str = ""
