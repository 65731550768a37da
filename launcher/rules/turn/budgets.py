"""Tells when a budget is used up, so that no replica of a service can start for long."""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.cluster.language.periods import clock_text
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.rpc.messages import BudgetView, ServiceView

_UNDER_WAY = frozenset({"starting", "running"})


@dataclass(frozen=True)
class UsedUp:
    """A budget under which no replica starts.

    Attributes:
        why: why, for clients.
        resets_s: Unix seconds at which its next period begins; None means never.
    """

    why: str
    resets_s: int | None


def used_up(
    budget: BudgetView | None,
    spec: ServiceSpec,
    views: Sequence[ServiceView],
    until_s: float,
) -> UsedUp | None:
    """Return the budget under which no replica of a service starts up to ``until_s``.

    ``views`` are its generations, the newest last. None if there is no such budget, or if a replica
    is under way. Slurm starts a run only if the budget has all that its time limit lets it use.
    What running jobs have reserved is not used up: they may end.
    """
    needs_millislice_min = views[-1].cost_millislices * spec.time_limit_min
    if budget is None or budget.run_millislice_min >= needs_millislice_min:
        return None
    is_soon = budget.resets_s is not None and budget.resets_s <= until_s
    if is_soon or any(slot.state in _UNDER_WAY for view in views for slot in view.slots):
        return None
    return UsedUp(_why(budget, needs_millislice_min), budget.resets_s)


def _why(budget: BudgetView, needs_millislice_min: int) -> str:
    left, needs = (amount / 60_000 for amount in (budget.run_millislice_min, needs_millislice_min))
    has = f"the budget of {budget.payer} has {left:.2f} slice-hours left"
    has += f", a replica takes {needs:.2f}"
    if budget.resets_s is None:
        return f"{has}; it has no further period"
    return f"{has}; its next period begins at {clock_text(budget.resets_s, 'UTC')} UTC"
