"""Types of the ledger: runs, reservations, transfers, charges, budget entries, statements."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.units import Millislices, MillisliceSeconds


@dataclass(frozen=True, order=True)
class RunKey:
    """One run of a job. A requeued job has several, told apart by their starts.

    Attributes:
        cluster: Slurm's ClusterName.
        job_id: Slurm's raw number; each task of an array has its own. On other meters than slices,
            what counts gives its own numbers, none twice at one start.
        start_s: Unix seconds.
        meter: the name of the meter on which its transfers are.
    """

    cluster: str
    job_id: int
    start_s: int
    meter: str = SLICES.name


@dataclass(frozen=True)
class Run:
    """A run of a job: tenant, user, allotted GPU instances and their cost.

    Attributes:
        tenant: the Slurm account, which is charged.
        task: the job or array task as users name it: ``814_3`` or ``814``.
        gres: GPU instances that Slurm allotted, by type.
        cost_millislices: cost of all these instances together; 0 on other meters than slices.
        payer: the tenant that pays with its budget: the run's own tenant, or the tenant above it
            that has a budget.
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
    """A run that is not settled yet, and the amount set aside for it.

    Attributes:
        reserved_millislice_s: amount still set aside, not counting what is posted.
        posted_millislice_s: amount posted so far, less what was reversed.
        transfers: number of transfers that the ledger has of this run.
    """

    reserved_millislice_s: MillisliceSeconds
    posted_millislice_s: MillisliceSeconds
    transfers: int


class Account(StrEnum):
    """The accounts of a tenant. Over all tenants their balances (credits − debits) sum to zero."""

    GRANTED = "granted"
    """The source of a budget: its balance is minus the net amount granted."""
    AVAILABLE = "available"
    """What is left to reserve. Without a budget: minus what the tenant's runs took."""
    RESERVED = "reserved"
    USED = "used"
    WAIVED = "waived"
    """Allotted by Slurm but not charged to the tenant."""
    OPERATOR = "operator"
    """The operator bears what is waived: the balance is minus that amount. It uses up no budget."""


class TransferKind(StrEnum):
    """Steps of a run's life in the ledger: two-phase, like TigerBeetle's pending transfers.

    https://docs.tigerbeetle.com/coding/two-phase-transfers/
    """

    RESERVE = "reserve"
    """At the start: cost × time limit, available → reserved."""
    EXTEND = "extend"
    """A larger reservation, available → reserved: the time limit grew, or the run outlived it."""
    POST = "post"
    """At the end: the exact use, reserved → used."""
    VOID = "void"
    """At the end: what is left, reserved → available."""
    REVERSE = "reverse"
    """Accounting shows less than is posted: the excess, used → reserved."""
    WAIVE = "waive"
    """At the end of a run that the operator pays: the use, operator → waived. The run's whole
    reservation is voided.
    """
    GRANT = "grant"
    """More budget: granted → available. Belongs to no run."""
    REVOKE = "revoke"
    """Less budget: available → granted. Belongs to no run."""
    USE = "use"
    """What was never reserved is used, available → used: a batch of tokens."""
    SHARE = "share"
    """A part of another's run: available → used. Taken back, of the run's own tenant."""
    RELIEVE = "relieve"
    """The same of the run's own tenant: used → available. Taken back, of the other."""


DEBIT_CREDIT: Mapping[TransferKind, tuple[Account, Account]] = {
    TransferKind.RESERVE: (Account.AVAILABLE, Account.RESERVED),
    TransferKind.EXTEND: (Account.AVAILABLE, Account.RESERVED),
    TransferKind.POST: (Account.RESERVED, Account.USED),
    TransferKind.VOID: (Account.RESERVED, Account.AVAILABLE),
    TransferKind.REVERSE: (Account.USED, Account.RESERVED),
    TransferKind.WAIVE: (Account.OPERATOR, Account.WAIVED),
    TransferKind.USE: (Account.AVAILABLE, Account.USED),
    TransferKind.GRANT: (Account.GRANTED, Account.AVAILABLE),
    TransferKind.REVOKE: (Account.AVAILABLE, Account.GRANTED),
    TransferKind.SHARE: (Account.AVAILABLE, Account.USED),
    TransferKind.RELIEVE: (Account.USED, Account.AVAILABLE),
}
"""The account that each kind of transfer debits, and the account that it credits."""

PAYERS = frozenset({Account.GRANTED, Account.AVAILABLE, Account.RESERVED})
"""Accounts that belong to the run's payer; the other accounts belong to the run's tenant."""


@dataclass(frozen=True)
class Transfer:
    """A positive amount that moves between two accounts of a run's payer and its tenant.

    Attributes:
        amount: in the unit of the run's meter.
        until_s: Unix second up to which the transfer covers the run: for a reservation the end of
            its time limit, for a post or void the run's end.
    """

    kind: TransferKind
    amount: int
    until_s: int


@dataclass(frozen=True)
class Charge:
    """Transfers of one run, to be applied together or not at all.

    Attributes:
        after: number of transfers that the run had when the charge was decided. The ledger applies
            a charge only if the run still has that number, so a repeated event, or a decision
            made on an old view of the ledger, changes nothing.
    """

    run: Run
    after: int
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True)
class Anomaly:
    """An anomaly of a run, reported to the operator instead of accepted silently."""

    key: RunKey
    text: str


@dataclass(frozen=True)
class Charging:
    """The decision of ``charging.charge``.

    Attributes:
        unpriced: GPU types of runs for which no cost is set: nothing is charged for them.
        untyped: runs with GPUs of which neither accounting nor slurmctld says the type: nothing is
            charged for these.
    """

    charges: tuple[Charge, ...]
    observations: tuple[Anomaly, ...]
    unpriced: frozenset[str]
    untyped: frozenset[RunKey] = frozenset()


@dataclass(frozen=True)
class StatementRow:
    """One run in a statement.

    Attributes:
        end_s: Unix seconds; None while the run lasts.
        used_millislice_s: amount posted, or used so far while the run lasts.
        waived_millislice_s: amount allotted by Slurm but not charged.
        reserved_millislice_s: amount set aside beyond that; 0 once the run is settled.
        service: name of the service of which the run is a replica; "" if it is none.
    """

    run: Run
    end_s: int | None
    used_millislice_s: MillisliceSeconds
    waived_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds
    service: str = ""


@dataclass(frozen=True)
class ShareLine:
    """What a tenant's requests used of a service on a day, and its shares of services' runs.

    Attributes:
        start_s: when the day begins, in Unix seconds.
        day: its date, as ``2026-01-31``.
        payer: the tenant whose budget is charged or relieved.
        service: OWNER/NAME.
        shared_millislice_s: what the tenant was charged of another's runs.
        relieved_millislice_s: what others were charged of its own runs.
        cached_prompt_tokens: a part of the prompt tokens.
        pooled_millislice_s: what the service used of its pool's other replicas, less what others
            used of its own; of all services of a tenant together it is 0.
    """

    start_s: int
    day: str
    tenant: str
    payer: str
    service: str
    shared_millislice_s: MillisliceSeconds
    relieved_millislice_s: MillisliceSeconds
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    pooled_millislice_s: MillisliceSeconds = MillisliceSeconds(0)

    @property
    def is_in_pool(self) -> bool:
        """Whether it is of a pool alone: among services of a tenant, and of no tokens."""
        others = self.shared_millislice_s, self.relieved_millislice_s, self.requests
        return bool(self.pooled_millislice_s) and not any(others)


@dataclass(frozen=True)
class TenantTotal:
    """The sum of a tenant's rows and shares in a statement.

    Attributes:
        used_millislice_s: what its own runs used.
        relieved_millislice_s: what others were charged of these.
        shared_millislice_s: what it was charged of others' runs.
        charged_millislice_s: used, less relieved, and shared.
    """

    tenant: str
    runs: int
    running: int
    used_millislice_s: MillisliceSeconds
    waived_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds
    relieved_millislice_s: MillisliceSeconds
    shared_millislice_s: MillisliceSeconds
    charged_millislice_s: MillisliceSeconds
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class InvoiceLine:
    """The sum of some of a tenant's rows and shares: those of one service, user or day.

    Attributes:
        key: the service ("" for jobs that are none; OWNER/NAME for another's), the user ("-" for
            shares, which are of no user), or the day as ``2026-01-31``.
        pooled_millislice_s: of a service, what it used of its pool's other replicas, less what
            others used of its own.
        charged_millislice_s: used, less relieved, shared and pooled.
    """

    tenant: str
    key: str
    runs: int
    running: int
    used_millislice_s: MillisliceSeconds
    waived_millislice_s: MillisliceSeconds
    reserved_millislice_s: MillisliceSeconds
    relieved_millislice_s: MillisliceSeconds
    shared_millislice_s: MillisliceSeconds
    charged_millislice_s: MillisliceSeconds
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    pooled_millislice_s: MillisliceSeconds = MillisliceSeconds(0)


@dataclass(frozen=True)
class Statement:
    """Runs in the order of their starts, a total per tenant, and shares by the day if asked for."""

    rows: tuple[StatementRow, ...]
    totals: tuple[TenantTotal, ...]
    shares: tuple[ShareLine, ...] = ()


def _once_of_slices(name: str) -> object:
    """A field that archives of snapshots may have by its name of before."""
    return Field(validation_alias=AliasChoices(name, f"{name}_millislice_s"))


@dataclass(frozen=True)
class Balance:
    """Current balances of a tenant's accounts on one meter, in its unit.

    Attributes:
        granted: amount granted to its budget, less what was revoked.
        available: granted, less what runs that the budget pays for have reserved and used.
            Negative: an overdraft, or a tenant without a budget.
        reserved: amount set aside for running jobs that its budget pays for.
        used, waived: totals of its own runs, whichever budget pays.
    """

    tenant: str
    granted: Annotated[int, _once_of_slices("granted")]
    available: Annotated[int, _once_of_slices("available")]
    reserved: Annotated[int, _once_of_slices("reserved")]
    used: Annotated[int, _once_of_slices("used")]
    waived: Annotated[int, _once_of_slices("waived")]


@dataclass(frozen=True)
class BalanceLine:
    """A tenant's balance on a meter, in the meter's unit, and what its budget has left now: None
    without a budget. Of slices the unit is a millislice-second.
    """

    tenant: str
    meter: str
    granted: int
    available: int
    reserved: int
    used: int
    waived: int
    left: int | None


@dataclass(frozen=True)
class BudgetEntry:
    """An amount granted to a budget, or taken back from it.

    Attributes:
        kind: ``roll`` at the start of a period, ``grant`` and ``adjust`` by an operator.
        amount: in the meter's unit; positive is granted, negative is taken back; a roll may be
            zero.
        period_start_s: start of the period for a roll, in Unix seconds, 0 for a budget without
            periods; None for other kinds.
        at_s: Unix seconds when the entry was recorded; None before.
        key: idempotency key: the ledger keeps one entry per key, so a repeated request adds
            nothing. None: each request adds another entry.
        meter: the name of the meter that the budget bounds.
    """

    tenant: str
    kind: Literal["roll", "grant", "adjust"]
    amount: int
    period_start_s: int | None
    author: str
    reason: str
    at_s: int | None = None
    key: str | None = None
    meter: str = SLICES.name


@dataclass(frozen=True)
class Verification:
    """The result of replaying the whole log.

    Attributes:
        transfers: number of transfers replayed.
        accounts: number of stored balances compared.
        reservations: number of open reservations compared.
        imbalance: sum of all amounts that do not add up, whatever their meters' units, plus 1 for
            each fault that is not an amount; 0 if and only if all is well.
        faults: descriptions of the first few faults.
        sealed: number of transfers that the chain of seals covers.
        seal: newest hash of the chain, in hexadecimal; "" if nothing is sealed. An operator who
            keeps a copy elsewhere can tell whether the chain itself was rewritten.
    """

    transfers: int
    accounts: int
    reservations: int
    imbalance: int
    faults: tuple[str, ...]
    sealed: int = 0
    seal: str = ""


@dataclass(frozen=True)
class BackupRecord:
    """What a dump of the ledger's database holds; it is kept beside the dump.

    Attributes:
        revision: revision of the tables.
        made_s: Unix seconds of the moment that the dump shows.
        seal: newest seal in the dump, in hexadecimal; "" if nothing was sealed.
        size: bytes of the dump.
        sha256: checksum of the dump, in hexadecimal.
    """

    database: str
    revision: str
    made_s: int
    transfers: int
    seal: str
    size: int
    sha256: str
