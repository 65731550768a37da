"""Property: plans of repartitioning are legal at every step, near the optimum, and never taken
back.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.layouts import Layout, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, board, cost_millislices
from slicewise.slurm_plugin.rules.mig.candidates import (
    GpuState,
    InstanceState,
    JobHolder,
    ReplicaHolder,
)
from slicewise.slurm_plugin.rules.mig.gpu_state import with_last_ones
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand, InstanceRequest, worth
from slicewise.slurm_plugin.rules.mig.planner import GpuPlan, RepartitionTerms, plan

TERMS = RepartitionTerms(repartition_s=60, horizon_s=3_600, nodes_at_once=2)


def plain(model: str) -> Board:
    """Without media engines, which only make the search longer."""
    found = board(model)
    return replace(found, profiles={n: p for n, p in found.profiles.items() if "+" not in n})


A30, A100 = plain("A30-24GB"), plain("A100-80GB")


@st.composite
def clusters(draw: st.DrawFn, on: Board, most: int = 3) -> tuple[GpuState, ...]:
    """Any layouts, each instance free, a job's or a replica's; two GPUs to a node."""
    gpus = []
    for number in range(draw(st.integers(1, most))):
        layout = draw(st.sampled_from(geometry(on).layouts))
        instances = tuple(InstanceState(one, draw(holders(number))) for one in sorted(layout))
        gpus.append(GpuState(str(number), str(number // 2), instances))
    return tuple(gpus)


@cache
def holders(gpu: int) -> st.SearchStrategy[JobHolder | ReplicaHolder | None]:
    ends = st.sampled_from([None, 30, 600])
    return st.one_of(
        st.none(),
        st.builds(JobHolder, st.just(f"j{gpu}"), ends),
        st.just(ReplicaHolder(f"r{gpu}", 30)),
    )


def demands(on: Board) -> st.SearchStrategy[InstanceDemand]:
    profiles = st.sampled_from(sorted(on.profiles))
    waiting = st.lists(
        st.builds(
            InstanceRequest, profiles, st.integers(0, 7_200), st.sampled_from([0.5, 1.0, 2.0])
        ),
        max_size=5,
    )
    expected = st.dictionaries(profiles, st.floats(0.1, 6), max_size=3)
    return st.builds(InstanceDemand, waiting.map(tuple), expected)


def applied(on: Board, gpus: Iterable[GpuState], steps: Iterable[GpuPlan]) -> tuple[GpuState, ...]:
    """Move by move and instance by instance; each must be possible when its turn comes."""
    steps = tuple(steps)
    there = {gpu.name: {one.placement: one for one in gpu.instances} for gpu in gpus}
    nodes = {gpu.name: gpu.node for gpu in gpus}
    gone = {(step.gpu, one) for step in steps for one in step.destroy}
    for step in steps:
        here = there[step.gpu]
        moving = [one for one in step.destroy if isinstance(here[one].holder, ReplicaHolder)]
        assert len(step.moves) == len(moving)
        for one in moving:
            gpu, target = next(
                (gpu, target)
                for gpu, those in there.items()
                for target, instance in those.items()
                if target.profile == one.profile and instance.holder is None
                if nodes[gpu] != step.node and (gpu, target) not in gone
            )
            there[gpu][target] = InstanceState(target, here[one].holder)
            here[one] = InstanceState(one)
        for one in step.destroy:
            assert here.pop(one).holder is None
        for one in step.create:
            here[one] = InstanceState(one)
            assert geometry(on).is_legal(here)
    changed = {step.gpu for step in steps}
    return tuple(
        replace(
            gpu,
            instances=tuple(there[gpu.name].values()),
            cut_ago_s=1 if gpu.name in changed else gpu.cut_ago_s,
        )
        for gpu in gpus
    )


@given(st.data(), st.sampled_from([A30, A100]))
@settings(max_examples=examples(30))
def test_every_step_is_possible_and_no_job_is_touched(data: st.DataObject, on: Board):
    gpus, demand = data.draw(clusters(on)), data.draw(demands(on))
    steps = plan(on, gpus, demand, TERMS)
    applied(on, gpus, steps)
    jobs = {
        (gpu.name, one.placement)
        for gpu in gpus
        for one in gpu.instances
        if isinstance(one.holder, JobHolder)
    }
    assert not jobs & {(step.gpu, one) for step in steps for one in step.destroy}
    assert len({step.node for step in steps}) <= TERMS.nodes_at_once
    assert len({step.gpu for step in steps}) == len(steps)
    for step in steps:
        assert step.gain_millislice_s > 0
        assert step.drained_millislice_s > 0


@given(st.data(), st.sampled_from([A30, A100]), st.booleans())
@settings(max_examples=examples(25))
def test_plans_end_and_none_takes_another_back(data: st.DataObject, on: Board, rests: bool):
    """Even if a GPU that was just cut were not left alone, and waiting jobs started immediately."""
    gpus, demand = data.draw(clusters(on)), data.draw(demands(on))
    starts = data.draw(st.booleans())
    seen = [layouts(gpus)]
    while steps := plan(on, gpus, demand, TERMS):
        gpus = applied(on, gpus, steps)
        if not rests:
            gpus = tuple(replace(gpu, cut_ago_s=None) for gpu in gpus)
        if starts:
            gpus, demand = started(gpus, demand)
        assert layouts(gpus) not in seen
        seen.append(layouts(gpus))


def layouts(gpus: Iterable[GpuState]) -> tuple[Layout, ...]:
    return tuple(frozenset(one.placement for one in gpu.instances) for gpu in gpus)


def started(
    gpus: Iterable[GpuState], demand: InstanceDemand
) -> tuple[tuple[GpuState, ...], InstanceDemand]:
    """The most urgent first."""
    waiting = sorted(demand.waiting, key=lambda one: -one.weight * (3_600 + one.waited_s))
    changed = []
    for gpu in gpus:
        instances = []
        for one in gpu.instances:
            taker = next((w for w in waiting if w.profile == one.placement.profile), None)
            if one.holder is None and taker:
                waiting.remove(taker)
                instances.append(replace(one, holder=JobHolder("new")))
            else:
                instances.append(one)
        changed.append(replace(gpu, instances=tuple(instances)))
    return tuple(changed), replace(demand, waiting=tuple(waiting))


@given(st.data(), st.sampled_from([A30, A100]))
@settings(max_examples=examples(25))
def test_who_finds_a_free_instance_needs_no_plan(data: st.DataObject, on: Board):
    gpus = data.draw(clusters(on))
    free = [one.placement.profile for g in gpus for one in g.instances if one.holder is None]
    served = [profile for profile in free if data.draw(st.booleans())]
    demand = InstanceDemand(tuple(InstanceRequest(profile, 60) for profile in served))
    assert plan(on, gpus, demand, TERMS) == ()


@given(clusters(A100), demands(A100))
@settings(max_examples=examples(25))
def test_what_was_just_cut_waits_for_somebody_new(gpus: Sequence[GpuState], demand: InstanceDemand):
    cut = tuple(replace(gpu, cut_ago_s=0) for gpu in gpus)
    assert plan(A100, cut, demand, TERMS) == ()


def test_plans_reach_nearly_what_the_best_of_all_plans_does():
    chance = random.Random(1)  # noqa: S311
    found = best = 0.0
    for _ in range(40):
        gpus, demand = drawn_cluster(chance), drawn_demand(chance)
        found += sum(
            step.gain_millislice_s - TERMS.margin * step.drained_millislice_s
            for step in plan(A30, gpus, demand, TERMS)
        )
        best += brute_force(A30, gpus, demand)
    assert 0.97 * best <= found <= best + 40


def drawn_cluster(chance: random.Random) -> tuple[GpuState, ...]:
    held = [None, None, JobHolder("j"), JobHolder("j", 30), ReplicaHolder("r", 30)]
    drawn = ([chance.choice(geometry(A30).layouts), chance.choice(["a", "b"])] for _ in range(2))
    return tuple(
        GpuState(
            str(n), node, tuple(InstanceState(one, chance.choice(held)) for one in sorted(layout))
        )
        for n, (layout, node) in enumerate(drawn)
    )


def drawn_demand(chance: random.Random) -> InstanceDemand:
    profiles = sorted(A30.profiles)
    waiting = [
        InstanceRequest(
            chance.choice(profiles), chance.randint(0, 7_200), chance.choice([0.5, 1, 2])
        )
        for _ in range(chance.randint(0, 5))
    ]
    expected = {name: chance.uniform(0.1, 6) for name in chance.sample(profiles, 2)}
    return InstanceDemand(tuple(waiting), expected)


def brute_force(on: Board, gpus: Sequence[GpuState], demand: InstanceDemand) -> float:
    """Over all layouts of all GPUs; instances that are in no job's way are destroyed, too."""
    costs = {name: int(cost_millislices(on, name, Fraction(1))) for name in on.profiles}
    instances = [one for gpu in gpus for one in gpu.instances]
    held = Counter(one.placement.profile for one in instances if not free_soon(one))
    free = Counter(one.placement.profile for one in instances if free_soon(one))
    spare = Counter(one.placement.profile for one in instances if one.holder is None)
    served = worth(demand, costs, held, TERMS.horizon_s)
    best = 0.0
    for targets in product(*(targets_of(on, gpu) for gpu in gpus)):
        more, gone, drained, nodes = Counter[str](), Counter[str](), 0, set[str]()
        movers, stay = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for gpu, target in zip(gpus, targets, strict=True):
            there = {one.placement: one for one in gpu.instances}
            destroyed, created = there.keys() - target, target - there.keys()
            if destroyed or created:
                nodes.add(gpu.node)
            more.update(one.profile for one in created)
            more.subtract(one.profile for one in destroyed)
            gone.update(one.profile for one in destroyed)
            for one, instance in there.items():
                moves = isinstance(instance.holder, ReplicaHolder) and one in destroyed
                movers[gpu.node, one.profile] += moves
                stay[gpu.node, one.profile] += instance.holder is None and one in target
            drained += TERMS.repartition_s * max(
                sum(costs[one.profile] for one in made) for made in (destroyed, created)
            )
            drained += sum(
                costs[one.profile] * there[one].holder.move_s
                for one in destroyed
                if isinstance(there[one].holder, ReplicaHolder)
            )
        can_move = all(
            count <= sum(n for (node, kind), n in stay.items() if kind == profile and node != own)
            for (own, profile), count in movers.items()
        )
        if len(nodes) <= TERMS.nodes_at_once and gone <= spare and can_move:
            best = max(best, served.gain(free, more) - TERMS.margin * drained)
    return best


def targets_of(on: Board, gpu: GpuState) -> Iterator[Layout]:
    stays = {one.placement for one in gpu.instances if isinstance(one.holder, JobHolder)}
    return (layout for layout in geometry(on).layouts if stays <= layout)


def free_soon(one: InstanceState) -> bool:
    if isinstance(one.holder, JobHolder):
        return one.holder.ends_in_s is not None and one.holder.ends_in_s <= TERMS.repartition_s
    return one.holder is None


@given(st.data(), st.sampled_from([A30, A100]))
@settings(max_examples=examples(30))
def test_the_shapes_that_guarantees_need_stay_whatever_step_a_plan_gets_to(
    data: st.DataObject, on: Board
):
    """What they may claim is given up only for others' guarantees, what they claim for none."""
    gpus, asked = data.draw(clusters(on)), data.draw(demands(on))
    counts = st.dictionaries(st.sampled_from(sorted(on.profiles)), st.integers(0, 6))
    claimed, others = Counter(data.draw(counts)), Counter(data.draw(counts))
    owns = data.draw(st.booleans())
    waiting = tuple(replace(one, is_guaranteed=owns) for one in asked.waiting)
    demand = replace(asked, waiting=waiting, claimed=claimed, guaranteed=claimed + others)
    steps = plan(on, gpus, demand, TERMS)
    before = profiles(gpus)
    kept = before & (claimed if owns else claimed + others)
    for number in range(len(steps) + 1):
        assert profiles(applied(on, gpus, steps[:number])) >= kept


@given(st.data(), st.sampled_from([A30, A100]))
@settings(max_examples=examples(30))
def test_a_gpu_is_cut_full_unless_a_larger_shape_that_is_in_want_could_be_there(
    data: st.DataObject, on: Board
):
    gpus, asked = data.draw(clusters(on)), data.draw(demands(on))
    needs = data.draw(st.dictionaries(st.sampled_from(sorted(on.profiles)), st.integers(0, 6)))
    demand = replace(asked, guaranteed=needs)
    steps = plan(on, gpus, demand, TERMS)
    after = {gpu.name: gpu for gpu in applied(on, gpus, steps)}
    wanted = Counter(one.profile for one in demand.waiting) + Counter(needs)
    for step in steps:
        layout = [one.placement for one in after[step.gpu].instances]
        here = Counter(one.profile for one in step.create)
        least = Counter(one.profile for one in step.asked)
        assert here >= least
        fits = {
            one.profile
            for one in geometry(on).placements
            if one not in layout and geometry(on).is_legal((*layout, one))
        }
        for name in fits & least.keys():
            cost = cost_millislices(on, name, Fraction(1))
            assert any(cost_millislices(on, one, Fraction(1)) > cost for one in wanted)


def profiles(gpus: Iterable[GpuState]) -> Counter[str]:
    return Counter(one.placement.profile for gpu in gpus for one in gpu.instances)


@given(st.data(), st.sampled_from([A30, A100]))
@settings(max_examples=examples(30))
def test_of_every_profile_that_was_there_one_is_left(data: st.DataObject, on: Board):
    gpus = with_last_ones(data.draw(clusters(on)), ())
    after = applied(on, gpus, plan(on, gpus, data.draw(demands(on)), TERMS))
    assert profiles(gpus).keys() <= profiles(after).keys()
