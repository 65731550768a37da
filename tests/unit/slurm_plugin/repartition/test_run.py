"""Tests how many repartitions a run makes, and by which plans."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from stand_ins.repartition_world import planned

from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    Repartition,
    RepartitionState,
)
from slicewise.slurm_plugin.repartition.executor import Executor
from slicewise.slurm_plugin.repartition.run import run
from slicewise.slurm_plugin.rules.mig.cuts_due import MOST_IN_A_RUN, STARTS_S

DONE, BACK = RepartitionState.DONE, RepartitionState.ROLLED_BACK


class Carrier:
    """Ends each repartition as told, and counts what comes."""

    def __init__(self, *states: RepartitionState) -> None:
        self.states, self.came = [*states], list[str]()

    async def carry_out(self, repartition: Repartition, *, taken_up: bool) -> Repartition:
        self.came.append(f"{repartition.node} {taken_up}")
        return replace(repartition, state=self.states.pop(0))

    async def wait(self, seconds: float) -> None:
        assert seconds == STARTS_S
        self.came.append("wait")


def opened(of: PlannedRepartition) -> Repartition:
    return Repartition(
        **vars(of),
        repartition_id=1,
        author="root",
        state=RepartitionState.RUNNING,
        started_s=0.0,
    )


async def ended(
    carrier: Carrier, *plans: Sequence[str], unfinished: Sequence[Repartition] = ()
) -> list[RepartitionState]:
    left = list(plans)

    async def plan() -> Sequence[PlannedRepartition]:
        return [replace(planned(), node=name) for name in left.pop(0)]

    found = await run(cast("Executor", carrier), unfinished, plan, opened)
    assert not left
    return [one.state for one in found]


async def test_each_repartition_has_a_plan_of_its_own() -> None:
    """What came meanwhile and is owed its type is first in the next plan."""
    carrier = Carrier(DONE, DONE)
    assert await ended(carrier, ["a", "b", "c"], ["owed", "b"], []) == [DONE, DONE]
    assert carrier.came == ["a False", "wait", "owed False", "wait"]


async def test_a_run_ends_with_the_first_that_is_in_vain() -> None:
    assert await ended(Carrier(DONE, BACK), ["a", "b"], ["b"]) == [DONE, BACK]


async def test_a_run_makes_so_many_at_most() -> None:
    many = [["a"]] * MOST_IN_A_RUN
    assert len(await ended(Carrier(*[DONE] * 20), *many)) == MOST_IN_A_RUN


async def test_where_one_was_unfinished_no_new_one_is_begun() -> None:
    carrier = Carrier(DONE)
    assert await ended(carrier, unfinished=[opened(planned())]) == [DONE]
    assert carrier.came == ["gpu01 True"]
