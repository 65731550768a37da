"""Finds the tenants that a planned change of budgets would harm more than today's budgets do."""

from collections import Counter
from collections.abc import Iterator, Mapping

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.units import slices_words
from slicewise.slurm_plugin.rules.accounting.statement import unposted_millislice_s
from slicewise.slurm_plugin.rules.explain.change_report import Impact, ImpactKind
from slicewise.slurm_plugin.rules.explain.quota_plan import QuotaPlan, Side
from slicewise.slurm_plugin.rules.explain.why_texts import span_text
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.round.world import World

_YEAR_S = 365 * 86_400


def in_debt(plan: QuotaPlan) -> Iterator[Impact]:
    """Yield the budgets that would have nothing left and have something left now."""
    for name, budget in sorted(plan.after.left.items()):
        before = plan.before.left.get(name)
        if budget.startable_millislice_s == 0 and (before is None or before.startable_millislice_s):
            overdraft = plan.after.policy[name].budget
            beyond = overdraft.overdraft if overdraft else 0
            words = (
                f"its budget would have {hours(budget.left_millislice_s)} slice-hours left, with an"
                f" overdraft of {hours(beyond)}: nothing starts until the next period or a grant"
            )
            yield Impact(ImpactKind.IN_DEBT, name, "", 0, words)


def used_up(inputs: World, plan: QuotaPlan, period_ends_s: Mapping[str, int]) -> Iterator[Impact]:
    """Yield the budgets that running jobs would use up before the next period, or within a year.

    The year is for budgets without periods. ``period_ends_s`` has the Unix seconds at which the
    others' periods end.
    """
    was, then = _lasting(inputs, plan.before), _lasting(inputs, plan.after)
    for name, (lasts_s, runs) in sorted(then.items()):
        ends_in_s = (
            period_ends_s.get(name, inputs.ledger_view.now_s + _YEAR_S) - inputs.ledger_view.now_s
        )
        if lasts_s >= min(ends_in_s, was.get(name, (ends_in_s,))[0]):
            continue
        words = (
            f"with what runs now ({slices_words(runs)}) its budget is used up in"
            f" {span_text(lasts_s)}; without a grant nothing starts then"
        )
        if name in period_ends_s:
            words += f" until its next period, {span_text(ends_in_s)} from now"
        if _set_aside(inputs, name) >= plan.after.left[name].startable_millislice_s:
            words += (
                "; running jobs may use up all of it within their time limits, so nothing starts"
                " now"
            )
        yield Impact(ImpactKind.USED_UP, name, "", 0, words, lasts_s)


def _lasting(inputs: World, side: Side) -> Mapping[str, tuple[int, int]]:
    """Return how many seconds each budget lasts, and the millislices that its tenants hold now.

    Budgets that have nothing left, or that no job uses now, are left out.
    """
    pays = payers(side.policy)
    runs: Counter[str] = Counter()
    for name, amount in inputs.held.items():
        runs[pays.get(name, "")] += amount
    return {
        name: (budget.startable_millislice_s // runs[name], runs[name])
        for name, budget in side.left.items()
        if runs[name] and budget.startable_millislice_s
    }


def _set_aside(inputs: World, payer: str) -> int:
    """Sum up the millislice-seconds that the payer's runs may still use up.

    Slurm subtracts these from the budget before it starts another run.
    """
    return sum(
        max(0, held.reserved_millislice_s - unposted_millislice_s(held, inputs.ledger_view.now_s))
        for held in inputs.ledger_view.reservations
        if held.payer == payer
    )


def hours(amount_millislice_s: int) -> str:
    """Format millislice-seconds as slice-hours with two decimals."""
    return f"{amount_millislice_s / SLICES.scale:.2f}"
