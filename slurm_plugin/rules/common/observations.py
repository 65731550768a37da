"""Sums by day of what was decided about submissions, and of what could be lent.

Days are those of UTC. They are kept for ``slicewise observe``, and none of it is money.
"""

from dataclasses import dataclass

DAY_S = 86_400


def day_of(at_s: float) -> int:
    """Return the Unix second at which the day of ``at_s`` began, in UTC."""
    return int(at_s) // DAY_S * DAY_S


@dataclass(frozen=True)
class Submissions:
    """What admission decided about submissions of one kind in one day.

    Attributes:
        mode: the daemon's mode when it decided.
        tenant: the account to be charged, as it was named.
        code: why it refused or would refuse them; "" for those that it admits or would admit.
        gpu_type: the GPU types asked for, or given, joined by "+".
        is_borrowed: whether they got, or would get, the QOS for borrowed quota.
        moved_qos: how many of them named another QOS than the one they get.
        moved_type: for how many the GPU type was chosen.
        asked_millislices: the cost of one task of each, summed; 0 for refused ones.
    """

    day_s: int
    mode: str
    tenant: str
    user: str
    code: str
    gpu_type: str
    is_borrowed: bool
    submissions: int
    moved_qos: int
    moved_type: int
    asked_millislices: int


@dataclass(frozen=True)
class LentBetween:
    """What one tenant would have lent to another in one day.

    Attributes:
        recalls: how often the lender would have taken something back.
    """

    day_s: int
    lender: str
    borrower: str
    lent_millislice_s: int
    recalls: int
    recalled_millislices: int


@dataclass(frozen=True)
class QuotaUse:
    """A tenant's guaranteed quota in one day, while the daemon looked.

    Attributes:
        seconds: for how long it looked.
        idle_millislice_s: the part that the tenant's own jobs did not need.
        idle_wanted_millislice_s: the part of that for which other tenants' jobs waited, or which
            they held; where they wanted less than was idle, all idle quota has its share of it.
        wanted_millislice_s: what its jobs held or waited for beyond it.
    """

    day_s: int
    tenant: str
    seconds: int
    guaranteed_millislice_s: int
    idle_millislice_s: int
    idle_wanted_millislice_s: int
    wanted_millislice_s: int


@dataclass(frozen=True)
class Observations:
    """Sums to be added to the ledger, or read from it."""

    submissions: tuple[Submissions, ...] = ()
    loans: tuple[LentBetween, ...] = ()
    quota: tuple[QuotaUse, ...] = ()
