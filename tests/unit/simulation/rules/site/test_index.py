"""Tests that what the simulator carries on of a look is what a look of its own would find."""

from dataclasses import replace
from random import Random

from builders.nodes import a_node
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.site.index import JobIndex, NodeIndex, ToldIndex
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import free_on_nodes

GPU, COSTS = frozenset({"gpu"}), {"1g.10gb": Millislices(1000)}


def run(job_id: int, account: str = "a", qos: str = "slicewise_a", count: int = 1) -> JobView:
    tres = {"gres/gpu:1g.10gb": str(count)}
    shown = job(job_id, account=account, qos=qos, tres=tres)
    return replace(shown, state=JobState.RUNNING, held=False)


def waits(job_id: int, qos: str = "slicewise_a") -> JobView:
    return replace(run(job_id, qos=qos), state=JobState.PENDING)


def jobs_index() -> JobIndex:
    return JobIndex(GPU, COSTS, {})


def node(number: int, held: int = 0, *states: str) -> NodeView:
    counts = {"a100": 8}
    return a_node(f"n{number}", *states, gpus=counts, gpus_allotted={"a100": held}, partitions=GPU)


def test_a_run_that_came_and_one_that_went_change_the_sums_of_their_places() -> None:
    index, first = jobs_index(), (run(1), run(2), run(3, "b", "slicewise_b"))
    assert index.look(first).held.by_qos == {("a", "slicewise_a"): 2000, ("b", "slicewise_b"): 1000}
    fourth = run(4, "b", "slicewise_a", 5)
    after = index.look((first[0], fourth)).held
    assert after.by_qos == {("a", "slicewise_a"): 1000, ("b", "slicewise_a"): 5000}
    assert after.by_tenant == {"a": 6000}
    assert [one.job for one in after.priced] == [first[0], fourth]


def test_the_same_runs_are_summed_up_once() -> None:
    index, runs, waiting = jobs_index(), run(1), waits(2)
    before = index.look((runs, waiting))
    after = index.look((runs,))
    assert (after.held is before.held, after.others) == (True, ())


def test_whatever_changes_jobs_are_as_at_a_fresh_look() -> None:
    draw = Random(7)  # noqa: S311 -- jobs, no secret
    jobs, index = {number: run(number) for number in range(20)}, jobs_index()
    for _ in range(200):
        for number in draw.sample(range(30), draw.randrange(4)):
            place = draw.choice("ab"), f"slicewise_{draw.choice('ab')}"
            if draw.random() < 0.3:
                jobs.pop(number, None)
            elif draw.random() < 0.3:
                jobs[number] = waits(number, place[1])
            else:
                jobs[number] = run(number, *place, draw.randrange(4))
        known, fresh = index.look(jobs.values()), jobs_by_holder(jobs.values(), GPU, COSTS, {})
        assert (known.held.by_qos, known.held.by_tenant) == (
            fresh.held.by_qos,
            fresh.held.by_tenant,
        )
        assert (known.runs, known.others) == (fresh.runs, fresh.others)
        assert known.held.priced == fresh.held.priced
        for ours, theirs in ((known.held.places, fresh.held.places), (known.queues, fresh.queues)):
            assert ours.keys() == theirs.keys()
        assert all({*runs} == {*fresh.held.places[at]} for at, runs in known.held.places.items())
        assert (known.own, known.for_loans) == (fresh.own, fresh.for_loans)
        assert all(queue.seen == fresh.queues[qos].seen for qos, queue in known.queues.items())


def test_a_queue_in_which_nothing_changed_is_the_same_one() -> None:
    index, jobs = jobs_index(), {1: waits(1), 2: waits(2, "slicewise_b"), 3: run(3)}
    first = index.look(jobs.values()).queues["slicewise_a"]
    for more in ({4: run(4)}, {2: replace(jobs[2], priority=9)}):
        after = index.look((jobs | more).values())
        assert after.queues["slicewise_a"] is first
        assert after.queues["slicewise_b"].seen == (more.get(2, jobs[2]),)
    changed = {**jobs, 1: replace(jobs[1], priority=9)}
    assert index.look(changed.values()).queues["slicewise_a"].seen == (changed[1],)


def test_a_node_that_changed_is_counted_anew() -> None:
    index, first, second = NodeIndex(GPU), node(1), node(2, 3)
    before = index.look((first, second))
    assert before == {"n1": {"a100": 8}, "n2": {"a100": 5}}
    after = index.look((node(1, 2), second))
    assert after == {"n1": {"a100": 6}, "n2": {"a100": 5}}
    assert after["n2"] is before["n2"]


def test_whatever_changes_nodes_are_as_at_a_fresh_look() -> None:
    draw, index = Random(7), NodeIndex(GPU)  # noqa: S311 -- nodes, no secret
    nodes = [node(number) for number in range(10)]
    for _ in range(200):
        for number in draw.sample(range(10), draw.randrange(4)):
            states = ("DOWN",) if draw.random() < 0.2 else ()
            nodes[number] = replace(node(number, draw.randrange(9)), states=frozenset(states))
        shown = tuple(nodes[draw.randrange(2) :] if draw.random() < 0.1 else nodes)
        fresh = free_on_nodes(shown, GPU)
        assert list(index.look(shown).items()) == list(fresh.items())


def test_what_is_told_of_a_job_is_the_same_object_while_it_is_the_same() -> None:
    index, jobs = ToldIndex(), (waits(1), waits(2))
    told = (replace(jobs[0], reason="Why"), jobs[1])
    first = index.look(jobs, told)
    assert first == told
    again = index.look(jobs, (replace(jobs[0], reason="Why"), jobs[1]))
    assert again[0] is first[0]
    other = index.look(jobs, (replace(jobs[0], reason="Other"), jobs[1]))
    assert other[0].reason == "Other"
    changed = (replace(jobs[0], priority=9), jobs[1])
    anew = index.look(changed, (replace(changed[0], reason="Other"), jobs[1]))
    assert anew[0].priority == 9
