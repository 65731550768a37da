"""Tests what applying a file would do: submit, nothing, a roll-over; and if quota has room."""

import pytest
from builders.service_specs import a_spec
from builders.service_views import a_service, a_tenant_view, slots_in

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
from slicewise.launcher.rules.engines.model_files import ModelNeeds
from slicewise.launcher.rules.services.apply_plan import (
    ApplyPlan,
    KeyChange,
    generations_of,
    plan_apply,
    with_needs,
)

COST = Millislices(1000)


def spec(**change: object) -> ServiceSpec:
    return a_spec(**({"max_replicas": 4} | change))


def generation(array: int, running: int, order: ServiceOrder = NO_ORDER) -> ServiceView:
    slots = slots_in(*["running"] * running, *["held"] * (4 - running))
    return a_service(array_job_id=array, directives=dict(spec().values()), slots=slots, order=order)


def view(*services: ServiceView, used: int = 0, limit: int | None = None) -> ViewAnswer:
    tenant = a_tenant_view(used, limit_millislices=limit)
    return ViewAnswer(observed_s=1.0, complete=True, services=services, tenants=(tenant,))


def test_the_newest_generation_has_the_largest_array():
    other = generation(900, 0).model_copy(update={"tenant": "nlp"})
    found = generations_of((generation(7, 0), other, generation(12, 0)), "vision", "chat")
    assert [one.array_job_id for one in found] == [12, 7]


def test_a_service_that_is_not_there_is_created():
    assert plan_apply(spec(), view(), COST) == ApplyPlan("create")


def test_the_same_again_is_nothing_unless_forced():
    seen = view(generation(7, 0))
    assert plan_apply(spec(), seen, COST) == ApplyPlan("nothing", 7)
    assert plan_apply(spec(), seen, COST, force=True) == ApplyPlan("roll over", 7)


def test_lost_slots_come_back_by_applying_the_same_again():
    slots = slots_in("gone", "held")
    seen = view(generation(7, 0).model_copy(update={"slots": slots}))
    said = "1 of its 2 slots are lost; a new array has all of them"
    assert plan_apply(spec(), seen, COST) == ApplyPlan("roll over", 7, (), (said,))


def test_what_is_being_deleted_is_not_applied_to():
    seen = view(generation(7, 1, ServiceOrder(delete_s=5.0)))
    with pytest.raises(InvalidInputError, match="SW-SERVICE-ENDING"):
        plan_apply(spec(), seen, COST)


def test_only_keys_that_differ_are_changes():
    changed = spec(profile=None, need_gib=8, concurrency=2)
    plan = plan_apply(changed, view(generation(7, 0)), COST)
    assert (plan.action, plan.changes) == (
        "roll over",
        (
            KeyChange("need_gib", None, "8"),
            KeyChange("concurrency", "1", "2"),
            KeyChange("profile", "1g.10gb", None),
        ),
    )


def test_what_the_files_say_counts_where_they_were_read_both_times():
    pooled = {"pool": "small", "model_digest": "0" * 16, "model_mib": 20}
    seen = view(generation(7, 0).model_copy(update={"directives": dict(spec(**pooled).values())}))
    assert plan_apply(spec(pool="small"), seen, COST).action == "nothing"
    (change,) = plan_apply(spec(**pooled | {"model_mib": 30}), seen, COST).changes
    assert change == KeyChange("model_mib", "20", "30")


def test_a_generation_of_an_older_version_is_compared_as_it_stands():
    old = generation(7, 0)
    old = old.model_copy(update={"directives": {**old.directives, "time_limit_min": "60"}})
    plan = plan_apply(spec(), view(old), COST)
    assert plan.changes == (KeyChange("time_limit_min", "60", None),)


@pytest.mark.parametrize(
    ("running", "used", "limit", "cost", "said"),
    [
        (2, 2000, None, 1000, "vision holds 2 of 4 slices, a new replica needs 1: new re"),
        (3, 3000, None, 1000, "needs 1: at most 1 at a time start beside the old ones"),
        (4, 4000, None, 1000, "old replicas are drained one at a time to make room"),
        (4, 4000, 8000, 1000, "vision holds 4 of 8 slices, a new replica needs 1: new re"),
        (2, 2000, None, 4000, "needs 4: old replicas are drained one at a time to make room"),
        (1, 4000, None, 1000, "one at a time to make room; requests wait at the gateway meanwhile"),
    ],
)
def test_quota_for_the_surge(running: int, used: int, limit: int | None, cost: int, said: str):
    seen = view(generation(7, running), used=used, limit=limit)
    note, *_ = plan_apply(spec(cpus=2), seen, Millislices(cost)).notes
    assert said in note


def test_a_service_at_zero_needs_no_surge():
    seen = view(generation(7, 0), used=4000)
    assert plan_apply(spec(cpus=2), seen, COST).notes == ()


@pytest.mark.parametrize(
    ("state", "surges"), [("released", 1), ("starting", 1), ("running", 1), ("ending", 0)]
)
def test_what_starts_needs_a_surge_as_what_runs_does_and_what_ends_needs_none(
    state: str, surges: int
):
    slots = slots_in(state, "held", "held", "held")
    seen = view(generation(7, 0).model_copy(update={"slots": slots}), used=4000)
    assert len(plan_apply(spec(cpus=2), seen, COST).notes) == surges


def test_an_ordered_scale_stays():
    order = ServiceOrder(min_replicas=2, max_replicas=3)
    (note,) = plan_apply(spec(min_replicas=1), view(generation(7, 0, order)), COST).notes
    assert note == (
        "it stays scaled to 2 to 3, not to the bounds of the file, until: "
        "slicewise service scale chat --reset"
    )


@pytest.mark.parametrize(
    ("limit", "back"),
    [(0, "; what it lends of its nominal 4 comes back when its own requests wait"), (6000, "")],
)
def test_quota_that_is_lent_is_no_reason_to_despair(limit: int, back: str):
    (note,) = plan_apply(spec(max_replicas=9), view(limit=limit), COST).notes
    assert note.endswith(f"1 slice each{back}")


@pytest.mark.parametrize(
    ("limit", "cost", "said"),
    [
        (None, 1000, ()),
        (
            3000,
            1000,
            ("limit is 3 slices now, loans included: 3 of max_replicas 4 can run, 1 slice each",),
        ),
        (
            1000,
            1000,
            ("limit is 1 slice now, loans included: 1 of min_replicas 2 can run, 1 slice each",),
        ),
        (
            0,
            1000,
            ("limit is 0 slices now, loans included: none of min_replicas 2 can run, 1 slice",),
        ),
        (6000, 1000, ()),
        (6000, 3500, ("loans included: 1 of min_replicas 2 can run, 3.5 slices each",)),
    ],
)
def test_a_quota_that_is_too_small_is_said(limit: int | None, cost: int, said: tuple[str, ...]):
    notes = plan_apply(spec(min_replicas=2), view(limit=limit), Millislices(cost)).notes
    assert [part in note for part, note in zip(said, notes, strict=True)] == [True] * len(said)


@pytest.mark.parametrize(
    ("concurrency", "affinity", "has_sequences", "said"),
    [
        (1, "sequence", True, True),
        (63, "none", True, True),
        ("auto", "sequence", True, True),
        (1, "sequence", False, True),
        (64, "sequence", True, False),
        (1, "none", False, False),
    ],
)
def test_sequences_that_would_block_each_other_are_told_of(
    concurrency: int | str, affinity: str, *, has_sequences: bool, said: bool
):
    """A service with three sequences and one place answered one of them in a minute."""
    asked = spec(concurrency=concurrency, session_affinity=affinity)
    needs = ModelNeeds("m", has_sequences=has_sequences, notes=("its own",))
    found = with_needs(ApplyPlan("create", notes=("quota",)), asked, needs)
    own, *more, quota = found.notes
    assert (own, quota) == ("its own", "quota")
    start = f"concurrency {concurrency}: as many sequences"
    assert [note.startswith(start) for note in more] == [True] * said


def test_where_only_adapters_differ_replicas_stay_unless_that_is_forced():
    before = spec(engine="vllm", adapters={"legal": "x"})
    living = generation(7, 2).model_copy(update={"directives": dict(before.values())})
    after = spec(engine="vllm", adapters={"legal": "y", "tax": "z"})
    plan = plan_apply(after, view(living, used=2000), COST)
    assert plan.changes == (KeyChange("adapters", "legal=x", "legal=y&tax=z"),)
    stay = "replicas that run load and unload adapters; none of them is replaced"
    assert stay in plan.notes
    assert not any("start beside" in note for note in plan.notes)
    assert stay not in plan_apply(after, view(living, used=2000), COST, force=True).notes
    first = generation(7, 2).model_copy(update={"directives": dict(spec(engine="vllm").values())})
    assert stay not in plan_apply(after, view(first, used=2000), COST).notes


def test_replicas_stay_where_only_the_audience_changes():
    seen, wider = view(generation(7, 2)), spec(audience=["nlp"])
    plan = plan_apply(wider, seen, COST)
    assert plan.action == "roll over"
    assert plan.changes == (KeyChange("audience", None, "nlp"),)
    assert plan.notes == ("only the audience changes: replicas that run go on",)


def test_replicas_of_a_generation_before_that_differ_by_more_are_replaced():
    older = generation(5, 1).model_copy(update={"directives": dict(spec(cpus=3).values())})
    plan = plan_apply(spec(audience="*"), view(generation(7, 0), older), COST)
    assert "quota: " in plan.notes[0]
