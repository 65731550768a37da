"""Tests what a tenant's services may still take, beside what its jobs hold."""

from dataclasses import replace

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedSlurm, desire, job, settings, sync_of

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.messages import BudgetView, ServiceView, SlotView
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.types import Budget
from slicewise.slurm_plugin.rules.services.quota_in_force import QuotaInForce
from slicewise.slurm_plugin.rules.services.slot_actions import TenantCapacity

pytestmark = pytest.mark.usefixtures("clock")

BORROWER = policy_of(
    tenant("vision", 3000, borrowing_limit_millislices=Millislices(4000)),
    tenant("lab", 9000, lending_limit_millislices=Millislices(9000)),
)
SERVICE = ServiceView(
    array_job_id=814,
    tenant="vision",
    name="resnet",
    user="alice",
    submit_s=0,
    directives={},
    profile="1g.10gb",
    cost_millislices=1000,
    slots=(),
)
OWN, BORROWED, BEFORE = "slicewise_vision", "slicewise_vision_borrowed", "normal"


def runs(index: int, qos: str) -> JobView:
    return job(index, JobState.RUNNING, qos=qos)


def quotas(lent: int | None = None) -> QuotaInForce:
    """Of a tenant to which so much is lent now; None before the first compilation."""
    found = QuotaInForce(settings())
    found.set_policy(BORROWER, {}, None)
    if lent is not None:
        amounts = map(Millislices, (3000 + lent, 3000, 0, lent, 3000, lent))
        found.set_standings({"vision": Standing(*amounts)}, {})
    return found


@pytest.mark.parametrize(
    ("lent", "own_held"), [(None, 3000), (0, 3000), (1000, 2000), (4000, 1000)]
)
def test_what_jobs_hold_in_qos_of_before_is_taken_off_as_slurms_limits_have_it(
    lent: int | None, own_held: int
) -> None:
    """First of what is lent. Slots were released that Slurm did not start."""
    jobs = [runs(0, OWN), runs(1, BORROWED), runs(2, BEFORE), runs(3, BEFORE)]
    room = quotas(lent).room(SERVICE, jobs, [], borrows=True)
    assert room == TenantCapacity(own=3000, own_held=own_held, most=7000, held=4000)


def test_what_they_hold_in_other_qos_is_never_more_than_the_own_part() -> None:
    jobs = [runs(index, BEFORE) for index in range(5)]
    room = quotas(0).room(SERVICE, jobs, [], borrows=True)
    assert room == TenantCapacity(own=3000, own_held=3000, most=7000, held=5000)


def test_jobs_of_accounts_without_a_quota_take_of_the_tenant_in_whose_qos_they_are() -> None:
    """Slurm's limits count them there: slots were released that did not start."""
    jobs = [runs(0, OWN), replace(runs(1, OWN), account="students")]
    jobs.append(replace(runs(2, BORROWED), account="students"))
    room = quotas().room(SERVICE, jobs, [], borrows=True)
    assert room == TenantCapacity(own=3000, own_held=2000, most=7000, held=3000)


async def test_slots_for_which_jobs_of_before_leave_nothing_go_to_the_borrowed_qos() -> None:
    slurm = ScriptedSlurm(job(0), job(1), job(2), runs(7, BEFORE))
    cluster_state = sync_of(slurm)
    cluster_state.set_policy(BORROWER, {})
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0, 1, 2}))
    assert answer.released == (0, 1, 2)
    (moved,) = (slots for name, slots in slurm.actions if BORROWED in name)
    assert moved == [2]


@pytest.mark.parametrize(("left_millislice_min", "most"), [(10, 36_000), (60_000, 3_600_000)])
async def test_what_was_granted_beyond_the_rule_may_be_used(
    left_millislice_min: int, most: int
) -> None:
    """A job within what was left was refused: it could never start."""
    paid = replace(BORROWER["vision"], budget=Budget(Period.MONTH, MillisliceSeconds(36_000)))
    cluster_state = sync_of(ScriptedSlurm(job(0)))
    cluster_state.set_policy(policy_of(paid), {})
    cluster_state.quotas.set_standings({}, {"vision": left_millislice_min})
    await cluster_state.turn()
    assert cluster_state.snapshot is not None
    assert cluster_state.snapshot.budgets == {"vision": most}


async def test_what_was_granted_to_the_tenant_that_pays_may_be_used() -> None:
    """Of a tenant below it a job was refused still: only its own name was looked up."""
    lab = replace(tenant("lab", 3000), budget=Budget(Period.MONTH, MillisliceSeconds(36_000)))
    cluster_state = sync_of(ScriptedSlurm(job(0)))
    cluster_state.set_policy(policy_of(lab, tenant("vision", 3000, "lab")), {})
    cluster_state.quotas.set_standings({}, {"lab": 60_000})
    await cluster_state.turn()
    assert cluster_state.snapshot is not None
    assert cluster_state.snapshot.budgets == {"lab": 3_600_000, "vision": 3_600_000}


def test_of_the_budgets_on_the_way_up_the_one_that_leaves_the_least_binds() -> None:
    monthly = Budget(Period.MONTH, MillisliceSeconds(36_000))
    top = replace(tenant("science", 9000), budget=Budget(Period.NONE, MillisliceSeconds(1)))
    below = replace(tenant("vision", 3000), parent="science", budget=monthly)
    other = replace(tenant("nlp", 1000), parent="science")
    found = QuotaInForce(settings())
    found.set_policy(policy_of(top, below, other, tenant("free", 1000)), {}, None)
    assert {one.budget for one in found.views({}, 0.0)} == {None}
    found.set_standings({}, {"science": 500, "vision": 20})
    budgets = {one.name: one.budget for one in found.views({}, 0.0)}
    above = BudgetView(payer="science", run_millislice_min=500)
    own = BudgetView(payer="vision", run_millislice_min=20, resets_s=31 * 86_400)
    assert budgets == {"science": above, "vision": own, "nlp": above, "free": None}


@pytest.mark.parametrize(
    ("of_type", "borrowing", "expected"),
    [
        (3, 4000, TenantCapacity(own=3000, own_held=1000, most=7000, held=2000)),
        (2, 4000, TenantCapacity(own=3000, own_held=2000, most=7000, held=2000)),
        (0, 4000, TenantCapacity(own=3000, own_held=4000, most=7000, held=2000)),
        # What may not borrow has no more room than its guarantee has for the type.
        (2, 0, TenantCapacity(own=3000, own_held=2000, most=3000, held=2000)),
        (1, 0, TenantCapacity(own=3000, own_held=3000, most=3000, held=3000, lacks_type=True)),
    ],
)
def test_replicas_have_room_for_as_many_of_their_type_as_are_guaranteed(
    of_type: int, borrowing: int, expected: TenantCapacity
) -> None:
    """One replica of the type runs in the own QOS, one of an array without priced GPUs beside."""
    quota = {"type_nominals": {"1g.10gb": of_type, "3g.40gb": 0}}
    tenants = policy_of(
        tenant("vision", 3000, borrowing_limit_millislices=Millislices(borrowing), **quota),
        BORROWER["lab"],
    )
    found = QuotaInForce(settings())
    found.set_policy(tenants, {}, None)
    jobs = [runs(0, OWN), runs(1, BORROWED)]
    assert found.room(SERVICE, jobs, [], borrows=True) == expected


async def test_admission_knows_the_limit_on_a_model_in_what_is_guaranteed_of_a_type() -> None:
    """It chose the own QOS for jobs that Slurm would not have started there."""
    limits = {"type_nominals": {"1g.10gb": 3}, "model_limits": {"A100-80GB": Millislices(2000)}}
    cluster_state = sync_of(ScriptedSlurm(job(0)))
    cluster_state.set_policy(policy_of(tenant("vision", 3000, **limits)), {})
    await cluster_state.turn()
    assert cluster_state.snapshot is not None
    assert cluster_state.snapshot.guaranteed_types == {"vision": {"1g.10gb": 2}}


def test_no_slot_is_released_in_the_place_of_a_job_that_is_completing() -> None:
    """A slot that Slurm requeues would wait beside it: more than the tenant may ever hold."""
    found = QuotaInForce(settings())
    by_type = tenant("vision", 3000, type_nominals={"1g.10gb": 2})
    found.set_policy(policy_of(by_type), {}, None)
    ending = replace(runs(1, OWN), state=JobState.COMPLETING)
    room = found.room(SERVICE, [runs(0, OWN), ending], [], borrows=True)
    assert room == TenantCapacity(own=3000, own_held=3000, most=3000, held=3000, lacks_type=True)


def test_released_slots_of_the_type_take_its_guarantee_too() -> None:
    found = QuotaInForce(settings())
    found.set_policy(policy_of(tenant("vision", 3000, type_nominals={"1g.10gb": 2})), {}, None)
    slots = tuple(SlotView(index=index, state="released") for index in (0, 1))
    services = [SERVICE.model_copy(update={"slots": slots})]
    room = found.room(SERVICE, [], services, borrows=True)
    assert room == TenantCapacity(own=3000, own_held=3000, most=3000, held=3000, lacks_type=True)
    other = SERVICE.model_copy(update={"profile": "3g.40gb"})
    assert found.room(other, [], services, borrows=True) == replace(
        room, own_held=2000, held=2000, lacks_type=False
    )
