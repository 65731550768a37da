"""Lists the steps of a run in order, and what each of them needs."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from slicewise.cluster.language.rebalances import StepName
from slicewise.slurm_plugin.rebalance.charging import reconcile, roll
from slicewise.slurm_plugin.rebalance.compile_limits import compile_step
from slicewise.slurm_plugin.rebalance.lend import lend, reclaim
from slicewise.slurm_plugin.rebalance.priorities import prioritise
from slicewise.slurm_plugin.rebalance.repartition import cut
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED


class Act(Protocol):
    """Takes one step. Every part of it may be repeated."""

    async def __call__(self, site: RunContext, look: RebalanceLook, /, *, apply: bool) -> Report:
        """Decide, and with ``apply`` do it; raises SlicewiseError if the step fails."""
        ...


@dataclass(frozen=True)
class Step:
    """A step of a run.

    Attributes:
        after: steps that must not have failed.
        in_slurm: whether the step is about Slurm, so that it changes nothing unless the mode is
            enforce.
        finishes: whether it goes on with an uninstall that has begun; steps without it change
            nothing in Slurm then.
        left_to: what a daemon that leads does instead each second; "" if both may act at the same
            time.
    """

    name: StepName
    act: Act
    after: frozenset[StepName] = frozenset()
    in_slurm: bool = True
    finishes: bool = False
    left_to: str = ""


STEPS = (
    Step(StepName.RECONCILE, reconcile, in_slurm=False),
    # Use of runs that cross a period's start is posted up to it, from reservations that reconcile
    # made.
    Step(StepName.ROLL, roll, frozenset({StepName.RECONCILE}), in_slurm=False),
    # On its older look a run would undo what the daemon has just done.
    Step(StepName.LEND, lend, left_to="lends and takes back"),
    Step(StepName.RECLAIM, reclaim, frozenset({StepName.LEND}), left_to="asks replicas to end"),
    # This need not wait for lend: existing loans hold on.
    Step(StepName.COMPILE, compile_step, finishes=True),
    Step(StepName.PRIORITISE, prioritise, left_to="sets priorities"),
    Step(StepName.CUT, cut),
)


def reason_to_skip(
    step: Step, site: RunContext, look: RebalanceLook, failed: Collection[StepName]
) -> str:
    """Why a step can't be done now, or need not be; "" if it is to be done."""
    if look.trouble is not None:
        return str(look.trouble)
    if look.is_uninstalled and step.in_slurm and not step.finishes:
        return UNINSTALLED.text()
    if missing := sorted(step.after & set(failed)):
        return f"Step {missing[0]} was not done."
    if step.left_to and look.leader and site.enforces:
        return f"The daemon on {look.leader} {step.left_to} every second."
    return ""
