"""Tests the actions that follow from a wish, and which slots are held on sight."""

from dataclasses import replace

import pytest
from builders.service_views import a_service, a_slot
from stand_ins.scripted import job

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.messages import ServiceView, SlotState
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.slurm_plugin.rules.common.released_soon import ReleasedSoon
from slicewise.slurm_plugin.rules.services.slot_actions import (
    SlotActions,
    TenantCapacity,
    after,
    check_may_retire,
    desired_after_restart,
    last_end_s,
    lost_slots,
    plan_desired,
    plan_guard,
    released_millislices,
    released_soon,
)


def service(*states: SlotState, tenant: str = "vision", reason: str = "x") -> ServiceView:
    slots = (a_slot(i, state, reason=reason) for i, state in enumerate(states))
    return a_service(tenant=tenant, name="bert", slots=tuple(slots))


def holds(amount: int) -> TenantCapacity:
    """Of a tenant that may borrow nothing."""
    return TenantCapacity(own=3000, own_held=amount, most=3000, held=amount)


ALL: tuple[SlotState, ...] = ("held", "released", "starting", "running", "ending", "gone")


def of(*indices: int) -> frozenset[int]:
    return frozenset(indices)


DESIRED = [
    # slots, desired, what the tenant holds, the plan
    (("held", "held"), of(0), 0, SlotActions(release=of(0))),
    (("held", "running"), of(0, 1), 1000, SlotActions(release=of(0))),
    (
        ("running", "starting", "released"),
        of(),
        3000,
        SlotActions(hold=of(2), requeue_hold=of(0, 1)),
    ),
    (ALL, of(0, 1, 2, 3, 4, 5), 0, SlotActions(release=of(0))),
    (ALL, of(), 3000, SlotActions(hold=of(1), requeue_hold=of(2, 3))),
    (("held",), of(7, -1), 0, SlotActions()),
    (("running",), of(0), 9000, SlotActions()),
]


@pytest.mark.parametrize(("states", "desired_slots", "held", "plan"), DESIRED)
def test_wish(
    states: tuple[SlotState, ...], desired_slots: frozenset[int], held: int, plan: SlotActions
):
    assert plan_desired(service(*states), desired_slots, holds(held)) == plan


def test_the_quota_keeps_back_and_says_so() -> None:
    plan = plan_desired(service(*["held"] * 4), of(0, 1, 2, 3), holds(1500))
    assert (plan.release, plan.kept_back) == (of(0), of(1, 2, 3))
    assert plan.note == "quota: vision holds 2.5 of 3 slices; a replica needs 1"


def test_that_the_type_is_used_up_is_said_and_no_number_of_slices() -> None:
    room = TenantCapacity(own=3000, own_held=3000, most=3000, held=3000, lacks_type=True)
    plan = plan_desired(service("held"), of(0), room)
    assert plan.kept_back == of(0)
    assert plan.note == "quota: vision has no more guaranteed 1g.10gb, and borrows none"


def test_what_is_given_up_makes_no_room_yet() -> None:
    plan = plan_desired(service("running", "held"), of(1), holds(3000))
    assert (plan.release, plan.kept_back, plan.requeue_hold) == (of(), of(1), of(0))


def test_over_quota_nothing_is_released() -> None:
    assert plan_desired(service("held"), of(0), holds(9000)).kept_back == of(0)


def test_without_quota_nothing_is_released() -> None:
    plan = plan_desired(service("held"), of(0), None)
    assert (plan.release, plan.kept_back) == (of(), of(0))
    assert plan.note == "quota: vision has none"


def test_without_a_price_nothing_is_released() -> None:
    unpriced = service("held").model_copy(update={"cost_millislices": 0})
    assert plan_desired(unpriced, of(0), holds(0)).kept_back == of(0)


def borrowed(found: ServiceView, *indices: int) -> ServiceView:
    slots = (slot.model_copy(update={"is_borrowed": slot.index in indices}) for slot in found.slots)
    return found.model_copy(update={"slots": tuple(slots)})


class TestBorrowing:
    ROOM = TenantCapacity(own=3000, own_held=2000, most=5000, held=3000)

    def test_beyond_the_guarantee_slots_wait_in_the_borrowed_qos(self) -> None:
        plan = plan_desired(service(*["held"] * 4), of(0, 1, 2, 3), self.ROOM)
        assert plan == SlotActions(
            borrow=of(1),
            release=of(0, 1),
            kept_back=of(2, 3),
            note="quota: vision holds 5 of 3 slices, 5 with what it may borrow; a replica needs 1",
        )

    def test_a_slot_that_rests_in_the_borrowed_qos_runs_where_there_is_room(self) -> None:
        resting = borrowed(service("held", "held"), 0, 1)
        assert plan_desired(resting, of(0, 1), self.ROOM) == SlotActions(
            guarantee=of(0), release=of(0, 1)
        )

    def test_what_waits_on_borrowed_quota_takes_the_guarantee_first(self) -> None:
        waiting = borrowed(service("held", "released", "released"), 1, 2)
        room = TenantCapacity(own=3000, own_held=2000, most=6000, held=5000)
        assert plan_desired(waiting, of(0, 1, 2), room) == SlotActions(
            guarantee=of(1), borrow=of(0), release=of(0)
        )

    def test_over_the_guarantee_nothing_goes_back(self) -> None:
        waiting = borrowed(service("released"), 0)
        room = TenantCapacity(own=3000, own_held=4000, most=6000, held=6000)
        assert plan_desired(waiting, of(0), room) == SlotActions()


def test_released_slots_count_by_the_qos_in_which_they_wait() -> None:
    services = (
        borrowed(service("released", "released", "running", "held"), 0, 2),
        service("released", tenant="nlp"),
        service("released"),
    )
    found = {qos: released_millislices("vision", services, borrowed=qos) for qos in (False, True)}
    assert found == {False: 2000, True: 1000}
    assert released_millislices("guest", services, borrowed=False) == 0


def test_guard_holds_what_is_loose() -> None:
    assert plan_guard(service(*ALL), of()).hold == of(1)
    assert plan_guard(service(*ALL), of(1)) == SlotActions()


def test_guard_holds_again_what_its_user_could_release() -> None:
    assert plan_guard(service("held", "held", reason="JobHeldUser"), of()).hold == of(0, 1)
    assert plan_guard(service("held", "running", reason="JobHeldUser"), of(0, 1)).hold == of(0)


def test_what_slurm_requeued_is_held_so_that_a_release_need_not_wait() -> None:
    requeued = service("released", "running", reason="BeginTime")
    assert plan_guard(requeued, of(0, 1)).hold == of(0)


@pytest.mark.parametrize(("reason", "is_requeued"), [("BeginTime", True), ("Priority", False)])
def test_a_slot_that_is_held_tells_whether_slurm_requeued_it(reason: str, is_requeued: bool):
    found = after(service("released", reason=reason), SlotActions(hold=of(0)))
    assert [(slot.state, slot.is_requeued) for slot in found.slots] == [("held", is_requeued)]


def gone(found: ServiceView, *indices: int) -> ServiceView:
    """Slurm still has a record of these."""
    slots = (
        slot.model_copy(update={"job_id": 9} if slot.index in indices else {})
        for slot in found.slots
    )
    return found.model_copy(update={"slots": tuple(slots)})


def test_what_is_lost_comes_back_when_it_is_time() -> None:
    lost = gone(service("held", "gone", "gone", "gone"), 1, 2)
    assert lost_slots(lost) == of(1, 2)
    assert plan_guard(lost, of()) == SlotActions()
    assert plan_guard(lost, of(1), of(1, 3)) == SlotActions(revive=of(1))


def test_a_service_that_was_cancelled_as_a_whole_stays_so() -> None:
    assert lost_slots(gone(service("gone", "ending"), 0)) == of()


class TestRetiring:
    OLD = service("held", "gone")
    NEWER = OLD.model_copy(update={"array_job_id": 900})

    def test_what_a_newer_generation_replaces_may_go(self) -> None:
        check_may_retire(self.OLD, (self.OLD, self.NEWER))

    def test_a_newer_generation_may_go_only_if_its_roll_over_may_be_aborted(self) -> None:
        with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
            check_may_retire(self.NEWER, (self.OLD, self.NEWER))
        said = {**self.NEWER.directives, "abort_roll_after": "3"}
        aborted = self.NEWER.model_copy(update={"directives": said})
        check_may_retire(aborted, (self.OLD, aborted))
        with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
            check_may_retire(aborted, (aborted,))

    def test_what_its_owner_ordered_to_end_may_go(self) -> None:
        ordered = self.OLD.model_copy(update={"order": ServiceOrder(delete_s=1.0)})
        check_may_retire(ordered, (ordered,))

    @pytest.mark.parametrize("change", [{"name": "x"}, {"tenant": "x"}, {"user": "x"}])
    def test_nothing_else_replaces_it(self, change: dict[str, str]) -> None:
        other = self.NEWER.model_copy(update=change)
        for others in ((), (self.OLD,), (self.OLD, other)):
            with pytest.raises(InvalidInputError, match=r"scancel 814 \[SW-SERVICE-CHANGED\]"):
                check_may_retire(self.OLD, others)
        with pytest.raises(InvalidInputError):
            check_may_retire(self.NEWER, (self.OLD, self.NEWER))

    @pytest.mark.parametrize("state", ["released", "starting", "running", "ending"])
    def test_not_while_a_slot_is_under_way(self, state: SlotState) -> None:
        with pytest.raises(InvalidInputError):
            check_may_retire(service("held", state), (self.NEWER,))


def test_after_a_restart_what_is_under_way_counts_as_wished() -> None:
    assert desired_after_restart(service(*ALL)) == of(1, 2, 3)


def test_the_last_end_of_slots_is_read_off_their_last_requeue() -> None:
    jobs = (
        job(0, restarts=1, submit_s=500),
        job(1, restarts=2, submit_s=700),
        job(2, submit_s=900),
        job(3, restarts=1, submit_s=None, unread=frozenset({"submit_s"})),
        job(4, submit_s=1, unread=frozenset({"restarts"})),
        job(0, restarts=9, submit_s=999, array_job_id=815),
    )
    now_s = 2000.5
    for slots, ended_s in ((of(0, 1), 700), (of(0, 2), 500), (of(2), 0), (of(), 0)):
        assert last_end_s(jobs, 814, slots, now_s) == ended_s
    for unread in (3, 4):
        assert last_end_s(jobs, 814, of(unread), now_s) == now_s


def test_the_view_after_a_plan() -> None:
    plan = SlotActions(release=of(0), hold=of(1), requeue_hold=of(3))
    states = [slot.state for slot in after(service(*ALL), plan).slots]
    assert states == ["released", "held", "starting", "ending", "ending", "gone"]


def borrows(of_service: ServiceView, room: TenantCapacity | None) -> frozenset[int]:
    """The slots that the guard lets borrow, where all are desired."""
    return plan_guard(of_service, of(0, 1, 2), room=room).borrow


def test_slots_that_wait_beyond_the_guaranteed_quota_borrow_the_last_first() -> None:
    waits = service("running", "released", "released", reason="QOSGrpBilling")
    room = TenantCapacity(own=2000, own_held=2500, most=4000, held=3500)
    assert borrows(waits, room) == of(2)
    within = TenantCapacity(own=3000, own_held=3000, most=4000, held=3500)
    assert borrows(waits, within) == of()
    assert borrows(service("released", reason="Resources"), room) == of()
    assert borrows(waits, holds(4000)) == borrows(waits, None) == of()
    assert plan_guard(waits, of(0, 1), room=room) == SlotActions(hold=of(2))


def test_of_slots_that_wait_beyond_all_that_may_be_borrowed_the_others_borrow() -> None:
    waits = service("released", "released", "released", reason="QOSGrpBilling")
    by_one = TenantCapacity(own=1000, own_held=3000, most=2000, held=3000)
    assert borrows(waits, by_one) == of(1)
    assert plan_guard(waits, of(0, 1, 2), room=by_one).hold == of(2)
    by_all = TenantCapacity(own=1000, own_held=3000, most=1000, held=5000)
    assert borrows(waits, by_all) == of()
    assert plan_guard(waits, of(0, 1, 2), room=by_all) == SlotActions(hold=of(1, 2))


def test_a_slot_within_the_guarantee_waits_for_what_is_lent_whatever_is_held_on_loan() -> None:
    """The tenant may not borrow now, and what it still holds on loan is on its way out."""
    waits = service("running", "released", reason="QOSGrpBilling")
    within = TenantCapacity(own=2000, own_held=2000, most=2000, held=5000)
    assert plan_guard(waits, of(0, 1), room=within) == SlotActions()


def test_a_slot_that_its_tenant_may_never_have_leaves_what_is_left_to_smaller_ones() -> None:
    """Its quota has shrunk since the slot was released, and it may not borrow."""
    waits = service("running", "released", reason="QOSGrpBilling")
    shrunk = TenantCapacity(own=1500, own_held=2000, most=1500, held=2000)
    plan = plan_guard(waits, of(0, 1), room=shrunk)
    assert plan == SlotActions(hold=of(1))
    kept = plan_desired(after(waits, plan), of(0, 1), replace(shrunk, own_held=1000, held=1000))
    assert (kept.release, kept.kept_back) == (of(), of(1))
    assert plan_guard(waits, of(0, 1), room=replace(shrunk, own=2000, most=2000)) == SlotActions()


OWN, BORROWED = "slicewise_vision", "slicewise_vision_borrowed"
SOON = [
    # own limit, held of it, the most that it may hold, held of all, what is released of two slots
    (3000, 3000, 3000, 3000, None),
    (3000, 2000, 3000, 2000, ReleasedSoon(OWN, of(0))),
    (3000, 1000, 6000, 4000, ReleasedSoon(OWN, of(0, 1))),
    (3000, 2000, 6000, 5000, ReleasedSoon(OWN, of(0))),
    (3000, 2000, 6000, 4000, ReleasedSoon(BORROWED, of(0, 1))),
    (3000, 3000, 6000, 5000, ReleasedSoon(BORROWED, of(0))),
]


@pytest.mark.parametrize(("own", "own_held", "most", "held", "soon"), SOON)
def test_slots_that_were_kept_back_are_released_soon_as_far_as_there_is_room(
    own: int, own_held: int, most: int, held: int, soon: ReleasedSoon | None
) -> None:
    view = service("held", "held", "running")
    room = TenantCapacity(own, own_held, most, held)
    kept = {view.array_job_id: of(0, 1)}
    expected = {} if soon is None else {view.array_job_id: soon}
    assert released_soon((view,), kept, lambda _: room) == expected


def test_services_of_a_tenant_share_its_room_and_one_without_quota_has_none() -> None:
    views = [service("held").model_copy(update={"array_job_id": nth}) for nth in (814, 815)]
    kept = {814: of(0), 815: of(0)}
    soon = released_soon(views, kept, lambda _: holds(2000))
    assert soon == {814: ReleasedSoon(OWN, of(0))}
    assert released_soon(views, kept, lambda _: None) == {}
    assert released_soon(views, {}, lambda _: holds(0)) == {}
