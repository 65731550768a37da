"""The ledger's words: quotas, runs, reservations, transfers, charges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.units import Millislices, MillisliceSeconds


@dataclass(frozen=True)
class Quota:
    """What a tenant (a Slurm account) may hold at one time."""

    tenant: str
    nominal_millislices: Millislices


@dataclass(frozen=True)
class QuotaChange:
    """One row of a quota's history, which is never altered.

    Attributes:
        change_id: rises with every change of any tenant; what the daemon has compiled is known
            by it.
        author: the operator's user name.
        at_s: Unix seconds.
    """

    change_id: int
    tenant: str
    nominal_millislices: Millislices
    author: str
    reason: str
    at_s: int


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
    """

    key: RunKey
    tenant: str
    user: str
    task: str
    gres: Mapping[str, int] = field(hash=False)
    cost_millislices: Millislices


@dataclass(frozen=True)
class Reservation(Run):
    """A run that is not settled yet, and what is set aside for it.

    Attributes:
        transfers: how many transfers the ledger has of this run.
    """

    reserved_millislice_s: MillisliceSeconds
    transfers: int


class Account(StrEnum):
    """The three accounts of a tenant; their balances (credits − debits) sum to zero."""

    AVAILABLE = "available"
    RESERVED = "reserved"
    USED = "used"


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


DEBIT_CREDIT: Mapping[TransferKind, tuple[Account, Account]] = {
    TransferKind.RESERVE: (Account.AVAILABLE, Account.RESERVED),
    TransferKind.EXTEND: (Account.AVAILABLE, Account.RESERVED),
    TransferKind.POST: (Account.RESERVED, Account.USED),
    TransferKind.VOID: (Account.RESERVED, Account.AVAILABLE),
}
"""Which account each kind of transfer debits, which it credits."""


@dataclass(frozen=True)
class Transfer:
    """An amount above zero that moves between two of a tenant's accounts.

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
    """What ``charging.charge`` decided."""

    charges: tuple[Charge, ...]
    observations: tuple[Observation, ...]


@dataclass(frozen=True)
class StatementRow:
    """One run in a statement.

    Attributes:
        end_s: Unix seconds; None while it runs.
        used_millislice_s: posted, or used so far while it runs.
        reserved_millislice_s: set aside beyond that; 0 once it is settled.
    """

    run: Run
    end_s: int | None
    used_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds


@dataclass(frozen=True)
class TenantTotal:
    """The sum of a tenant's rows in a statement."""

    tenant: str
    runs: int
    running: int
    used_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds


@dataclass(frozen=True)
class Statement:
    """Runs in the order of their starts, and a total per tenant."""

    rows: tuple[StatementRow, ...]
    totals: tuple[TenantTotal, ...]
