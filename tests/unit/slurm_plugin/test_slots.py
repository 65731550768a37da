"""From a wish to actions, and what is held on sight."""

import pytest

from cluster.wire import ServiceView, SlotState, SlotView, TenantView
from slurm_plugin.decide.slots import (
    SlotPlan,
    after,
    committed_millislices,
    plan_guard,
    plan_wish,
    wished_after_restart,
)


def service(*states: SlotState, tenant: str = "vision", reason: str = "x") -> ServiceView:
    return ServiceView(
        array_job_id=814,
        tenant=tenant,
        name="bert",
        user="alice",
        submit_s=0,
        directives={},
        profile="1g.10gb",
        cost_millislices=1000,
        slots=tuple(
            SlotView(index=i, state=state, reason=reason) for i, state in enumerate(states)
        ),
    )


VISION = TenantView(name="vision", nominal_millislices=3000, used_millislices=0)
ALL: tuple[SlotState, ...] = ("held", "released", "starting", "running", "ending", "gone")


def of(*indices: int) -> frozenset[int]:
    return frozenset(indices)


WISHES = [
    # slots, wish, what the tenant holds, the plan
    (("held", "held"), of(0), 0, SlotPlan(release=of(0))),
    (("held", "running"), of(0, 1), 1000, SlotPlan(release=of(0))),
    (("running", "starting", "released"), of(), 3000, SlotPlan(hold=of(2), requeue_hold=of(0, 1))),
    (ALL, of(0, 1, 2, 3, 4, 5), 0, SlotPlan(release=of(0))),
    (ALL, of(), 3000, SlotPlan(hold=of(1), requeue_hold=of(2, 3))),
    (("held",), of(7, -1), 0, SlotPlan()),
    (("running",), of(0), 9000, SlotPlan()),
]


@pytest.mark.parametrize(("states", "wished", "holds", "plan"), WISHES)
def test_wish(states: tuple[SlotState, ...], wished: frozenset[int], holds: int, plan: SlotPlan):
    assert plan_wish(service(*states), wished, VISION, holds) == plan


def test_the_quota_keeps_back_and_says_so() -> None:
    plan = plan_wish(service(*["held"] * 4), of(0, 1, 2, 3), VISION, 1500)
    assert (plan.release, plan.kept_back) == (of(0), of(1, 2, 3))
    assert plan.note == "quota: vision holds 2.5 of 3 slices, a replica needs 1"


def test_what_is_given_up_makes_no_room_yet() -> None:
    plan = plan_wish(service("running", "held"), of(1), VISION, 3000)
    assert (plan.release, plan.kept_back, plan.requeue_hold) == (of(), of(1), of(0))


def test_over_quota_nothing_is_released() -> None:
    assert plan_wish(service("held"), of(0), VISION, 9000).kept_back == of(0)


def test_without_quota_nothing_is_released() -> None:
    plan = plan_wish(service("held"), of(0), None, 0)
    assert (plan.release, plan.kept_back) == (of(), of(0))
    assert plan.note == "quota: vision has none"


def test_without_a_price_nothing_is_released() -> None:
    unpriced = service("held").model_copy(update={"cost_millislices": 0})
    assert plan_wish(unpriced, of(0), VISION, 0).kept_back == of(0)


def test_committed_counts_use_and_released_slots_of_the_tenant() -> None:
    services = (
        service("released", "released", "running", "held"),
        service("released", tenant="nlp"),
        service("released"),
    )
    assert committed_millislices("vision", services, {"vision": 1000, "nlp": 500}) == 4000
    assert committed_millislices("guest", services, {}) == 0


def test_guard_holds_what_is_loose() -> None:
    assert plan_guard(service(*ALL), of()).hold == of(1)
    assert plan_guard(service(*ALL), of(1)) == SlotPlan()


def test_guard_holds_again_what_its_user_could_release() -> None:
    assert plan_guard(service("held", "held", reason="JobHeldUser"), of()).hold == of(0, 1)
    assert plan_guard(service("held", "running", reason="JobHeldUser"), of(0, 1)).hold == of(0)


def test_after_a_restart_what_is_under_way_counts_as_wished() -> None:
    assert wished_after_restart(service(*ALL)) == of(1, 2, 3)


def test_the_view_after_a_plan() -> None:
    plan = SlotPlan(release=of(0), hold=of(1), requeue_hold=of(3))
    states = [slot.state for slot in after(service(*ALL), plan).slots]
    assert states == ["released", "held", "starting", "ending", "ending", "gone"]
