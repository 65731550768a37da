"""Property: what never happens to a lease, whatever runs, waits and is reserved."""

from dataclasses import replace

from effort import examples
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.services.leases import Leased, Spare, Wall, plan_leases

NOW_S = 1_000_000
NODES = ("gpu01", "gpu02")
COSTS = {"1g.10gb": Millislices(1000)}
WAITING = job(9, tres={"gres/gpu:1g.10gb": "7"})

walls = st.dictionaries(
    st.sampled_from(NODES),
    st.lists(
        st.builds(
            Wall,
            st.integers(NOW_S - 5000, NOW_S + 5000),
            st.just("why"),
            st.sampled_from((None, WAITING)),
        ),
        max_size=3,
    ),
)

budgets = st.dictionaries(st.just("vision"), st.integers(-5000, 30_000))


def spare_of(budget: dict[str, int]) -> Spare:
    return Spare(budget, {name: (name,) for name in budget})


@st.composite
def slots(draw: st.DrawFn) -> list[Leased]:
    found = []
    for index in range(draw(st.integers(1, 4))):
        lease_s = draw(st.integers(60, 4000))
        run = job(
            index,
            JobState.RUNNING,
            nodes=(draw(st.sampled_from(NODES)),),
            tres={"gres/gpu:1g.10gb": "1"},
        )
        end_s = NOW_S + draw(st.integers(-100, 5000))
        limit_min, is_wanted = draw(st.integers(1, 100)), draw(st.booleans())
        found.append(Leased((814, index), run, end_s, limit_min, lease_s, is_wanted=is_wanted))
    return found


@given(slots(), walls, budgets, st.booleans())
@hypothesis_settings(max_examples=examples(100, nightly=6000))
def test_a_lease(
    found: list[Leased], standing: dict[str, list[Wall]], budget: dict[str, int], extends: bool
) -> None:
    plan = plan_leases(found, standing, spare_of(budget), NOW_S, COSTS, extends=extends)
    by_key = {one.key: one for one in found}
    left = budget.get("vision", 10**9)
    for (array, index, _), limit_min in plan.limits_min.items():
        slot = by_key[array, index]
        more_min = limit_min - slot.limit_min
        end_s = slot.end_s + 60 * more_min
        # Never shorter, never of an unwanted replica, never while enough is left.
        assert more_min > 0
        assert slot.is_wanted
        assert extends
        assert slot.end_s - NOW_S < slot.lease_s / 2
        first_s = min((wall.at_s for wall in standing.get(slot.run.nodes[0], ())), default=None)
        # Never past a wall, all together never past the budget, and else to a whole lease.
        assert first_s is None or end_s <= first_s
        assert 1000 * more_min <= left
        is_whole = NOW_S + slot.lease_s <= end_s < NOW_S + slot.lease_s + 60
        is_stopped = first_s is not None and end_s + 60 > first_s
        assert is_whole or is_stopped or 1000 * (more_min + 1) > left
        left -= 1000 * more_min
    for (array, index, _), end in plan.ends.items():
        slot = by_key[array, index]
        new_min = plan.limits_min.get(slot.run_key, slot.limit_min) - slot.limit_min
        # An end is told before a limit that it cut short; a whole lease may end before it.
        new_end_s = slot.end_s + 60 * new_min
        assert end.at_s < new_end_s or new_min == 0 or new_end_s >= NOW_S + slot.lease_s
    for slot in found:
        first_s = min((wall.at_s for wall in standing.get(slot.run.nodes[0], ())), default=0)
        # Who must end soon is told.
        is_told = (*slot.key, slot.run.start_s) in plan.ends
        assert is_told or (extends and not NOW_S < first_s <= NOW_S + 900)
    again = [
        replace(
            one,
            limit_min=plan.limits_min.get(one.run_key, one.limit_min),
            end_s=one.end_s
            + 60 * (plan.limits_min.get(one.run_key, one.limit_min) - one.limit_min),
        )
        for one in found
    ]
    nothing = spare_of(dict.fromkeys(budget, 0))
    assert plan_leases(again, standing, nothing, NOW_S, COSTS, extends=extends).limits_min == {}
