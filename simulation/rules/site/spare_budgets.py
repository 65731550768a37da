"""Whether budgets have so much left that a job starts, whenever its limits were last computed."""

from collections import Counter
from collections.abc import Mapping

from slicewise.simulation.rules.slurm_model.qos_limits import CALC_PERIOD_S
from slicewise.slurm_plugin.rules.common.qos_names import holder
from slicewise.slurm_plugin.rules.limits.budget_parts import Runs, bindings, drawn_on
from slicewise.slurm_plugin.rules.quota.types import Policy


class SpareBudgets:
    """What budgets had left at a round, beside all that jobs may still take of them.

    What runs uses up budgets and its own claim on them alike, and runs that end early give some
    back. So only jobs that come later make less of what is to spare. A QOS gets at least an even
    part of it: a job of at most that part starts on the limits of that round, and would on those of
    a later one. Jobs that Slurm runs again are left out: what they take twice is little.
    """

    def __init__(
        self, policy: Policy, run_minutes: Mapping[str, int], runs: Runs, capacity: int | None
    ) -> None:
        """``run_minutes`` and ``runs`` are those of the round; ``capacity`` is in millislices."""
        draws = drawn_on(policy, run_minutes, policy)
        self._above = bindings(policy, run_minutes)
        self._parts = Counter(budget for above in draws.values() for budget in above)
        # Slurm counts what running jobs may still take as of its last period.
        self._late = (capacity or 0) * int(CALC_PERIOD_S) // 60
        self._spare = Counter(run_minutes)
        self._claimed: Counter[str] = Counter()
        for (account, qos), minutes in runs.may_take.items():
            self._take(holder(account, qos), minutes)
        for run in runs.waiting:
            self._take(holder("", run.qos), run.minutes)

    def _take(self, tenant: str, minutes: int) -> None:
        for budget in self._above.get(tenant, ()):
            self._spare[budget] -= minutes

    def lets(self, account: str, minutes: int | None) -> bool:
        """Claim the millislice-minutes for a job; return whether it starts for sure.

        None stands for a job without a time limit.
        """
        above = self._above.get(account)
        if above is None or minutes is None:
            return False
        for budget in above:
            self._claimed[budget] += minutes
        return all(
            self._parts[budget] * (self._claimed[budget] + self._late) < self._spare[budget]
            for budget in above
        )
