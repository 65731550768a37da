"""Tests that what the simulator carries on of a look is what a look of its own would find."""

from dataclasses import replace
from random import Random

from builders.nodes import a_node
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.simulation.rules.site.index import NodeIndex, ToldIndex
from slicewise.slurm_plugin.rules.quota.nodes import free_on_nodes

GPU = frozenset({"gpu"})


def waits(job_id: int, qos: str = "slicewise_a") -> JobView:
    shown = job(job_id, account="a", qos=qos, tres={"gres/gpu:1g.10gb": "1"})
    return replace(shown, state=JobState.PENDING, held=False)


def node(number: int, held: int = 0, *states: str) -> NodeView:
    counts = {"a100": 8}
    return a_node(f"n{number}", *states, gpus=counts, gpus_allotted={"a100": held}, partitions=GPU)


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
