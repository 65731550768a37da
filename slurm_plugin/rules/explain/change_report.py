"""What a change of quotas does, for people and programs: tenants, loans, and whom it harms."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from slicewise.slurm_plugin.rules.quota.standings import Standing


@dataclass(frozen=True, kw_only=True)
class TenantSide(Standing):
    """One tenant on one side.

    Attributes:
        nominal_millislices: effective nominal of the tenant and the tenants below it.
    """

    nominal_millislices: int


@dataclass(frozen=True)
class TenantPlan:
    """One tenant before and after the change.

    Attributes:
        depth: number of tenants above it.
        before: None if the tenant is new.
        after: None if the tenant is removed.
    """

    tenant: str
    depth: int
    before: TenantSide | None
    after: TenantSide | None


@dataclass(frozen=True)
class LoanPlan:
    """A loan that would change; 0 means no loan."""

    lender: str
    borrower: str
    before_millislices: int
    after_millislices: int


class ImpactKind(StrEnum):
    """Kinds of impact."""

    REMOVED = "removed"
    """The tenant is removed while its jobs hold something."""
    OVERCOMMITTED = "overcommitted"
    """The quotas at the top are more than the cluster has, in slices or of a type."""
    OVER_GUARANTEED = "over-guaranteed"
    """A tenant holds more in its own QOS than its guaranteed quota: no new starts there for a
    while.
    """
    OVER_LIMIT = "over-limit"
    """A tenant holds more in total than its limit: nothing new starts for a while."""
    TYPE = "type"
    """A tenant holds more instances of a type than it may: no new ones start for a while."""
    BEYOND_TYPE_LIMIT = "beyond-type-limit"
    """A tenant may come to hold more of a type than its limit, by what is guaranteed of it."""
    CALLED_BACK = "called-back"
    """A tenant holds more on loan than it would be lent."""
    REPLICA = "replica"
    """A borrowed replica is drained; others of its service take over what they can."""
    NEVER_STARTS = "never-starts"
    """A waiting job needs more than its tenant could ever have."""
    MIN_REPLICAS = "min-replicas"
    """A service's least replicas would not all fit into its tenant's guaranteed quota."""
    IN_DEBT = "in-debt"
    """A budget would have nothing left to start runs on."""
    USED_UP = "used-up"
    """Running jobs would use up a budget before it starts again, or within a year."""


@dataclass(frozen=True)
class Impact:
    """One impact that a change would have.

    Attributes:
        tenant: the tenant; "" for all tenants together.
        about: the job, replica or service; "" for the tenant itself.
        amount_millislices: excess amount; 0 where the impact is not one of slices.
        words: description.
        in_s: seconds until the impact occurs; 0 means immediately.
    """

    kind: ImpactKind
    tenant: str
    about: str
    amount_millislices: int
    words: str
    in_s: int = 0


@dataclass(frozen=True)
class ChangeReport:
    """What a file of quotas would do, for people and programs.

    Attributes:
        changes: what would be set, a line for each tenant that the file names.
        warnings: tenants that are elsewhere in Slurm, with the command that moves them.
        tenants: those that the file names or that change otherwise, and the tenants above them, in
            the order of the tree; ``unchanged`` is the number of the others.
        harms: what it would make worse.
        hidden: tenants that the file names and for which the calendar has other quotas now.
        ended_windows: ids of calendar windows that end because their tenants are removed.
        needs_overcommit: whether the quotas at the top would exceed the cluster by more than now;
            ``slicewise tenant-quota apply`` then needs ``--overcommit``.
        left_out: number of tenants, loans and harms that are not in it.
    """

    changes: tuple[str, ...]
    warnings: tuple[str, ...]
    tenants: tuple[TenantPlan, ...]
    unchanged: int
    loans: tuple[LoanPlan, ...]
    harms: tuple[Impact, ...]
    hidden: tuple[str, ...]
    ended_windows: tuple[int, ...]
    needs_overcommit: bool
    left_out: int = 0

    def cut(self, most: int) -> Self:
        """The same with so many tenants, loans and harms at most, of each."""
        lists = (self.tenants, self.loans, self.harms)
        return replace(
            self,
            tenants=self.tenants[:most],
            loans=self.loans[:most],
            harms=self.harms[:most],
            left_out=sum(len(whole[most:]) for whole in lists),
        )
