"""Tests which nodes slots are kept off, and that this never keeps one from starting."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.nodes import a_node
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobTag, JobView, NodeView
from slicewise.cluster.language.slurm.interface import JobChange, Tasks
from slicewise.slurm_plugin.rules.services.avoidance import (
    LONGEST_S,
    Release,
    avoidance_changes,
    concerns,
    waits_too_long,
)

NONE: frozenset[str] = frozenset()
AVOIDS = "slicewise:1 token=ab12 tenant=vision service=bert avoids="
WHOLE = job(0, task_index=None, untouched=frozenset({0, 1, 2}))


NODES = tuple(a_node(f"gpu0{number}") for number in range(1, 5))


def changed(
    *jobs: JobView,
    avoid: tuple[str, ...],
    excluded: Mapping[int, frozenset[str]] | None = None,
    nodes: tuple[NodeView, ...] = NODES,
    slots: frozenset[int] = frozenset({0, 1, 2}),
) -> dict[frozenset[int], tuple[frozenset[str] | None, tuple[str, ...]]]:
    """Excluded nodes and the tag's own, by slots."""
    known = excluded or {one.job_id: NONE for one in jobs}
    found = avoidance_changes(Release(814, slots, avoid), jobs, known, nodes)
    shown = dict[frozenset[int], tuple[frozenset[str] | None, tuple[str, ...]]]()
    for target, change in found.items():
        tag = JobTag.find(change.admin_comment or "")
        assert isinstance(target, Tasks)
        assert tag is not None
        assert replace(change, excluded_nodes=None, admin_comment=None) == JobChange()
        shown[target.indices] = (change.excluded_nodes, tag.avoids)
    return shown


def test_the_list_and_the_tag_are_changed_together():
    found = changed(WHOLE, avoid=("gpu01",), slots=frozenset({0, 2}))
    assert found == {frozenset({0, 2}): ({"gpu01"}, ("gpu01",))}
    (change,) = avoidance_changes(
        Release(814, frozenset({0}), ("gpu01",)), [WHOLE], {900: NONE}, NODES
    ).values()
    assert change.admin_comment == f"{AVOIDS}gpu01"


def test_what_is_as_it_should_be_is_left_alone():
    assert changed(job(0, admin_comment=f"{AVOIDS}gpu01"), avoid=("gpu01",)) == {}
    assert changed(WHOLE, avoid=()) == {}


def test_nodes_that_the_user_excludes_stay_excluded():
    both = {900: frozenset({"gpu01", "gpu04"})}
    avoiding = job(0, admin_comment=f"{AVOIDS}gpu01")
    assert changed(avoiding, avoid=(), excluded=both) == {frozenset({0}): ({"gpu04"}, ())}
    assert changed(avoiding, avoid=("gpu02",), excluded=both) == {
        frozenset({0}): ({"gpu02", "gpu04"}, ("gpu02",))
    }
    # Of three nodes that the user leaves, one is avoided.
    found = changed(WHOLE, avoid=("gpu02", "gpu01"), excluded={900: frozenset({"gpu04"})})
    assert found == {frozenset({0, 1, 2}): ({"gpu02", "gpu04"}, ("gpu02",))}


@pytest.mark.parametrize(
    ("nodes", "avoids"),
    [
        (NODES, ("gpu02", "gpu04")),
        (NODES[1:], ("gpu04",)),
        (NODES[2:], ("gpu04",)),
        (NODES[3:], None),
        ((a_node("gpu01", "IDLE", "DRAIN"), a_node("gpu02", "DOWN"), a_node("gpu04")), None),
        ((a_node("gpu01", partitions=frozenset({"cpu"})), a_node("gpu04")), None),
        ((a_node("gpu01", gpus={"3g.40gb": 1}), a_node("gpu04")), None),
        ((), None),
    ],
)
def test_at_most_half_of_the_nodes_that_could_run_it_the_first_ones_first(
    nodes: tuple[NodeView, ...], avoids: tuple[str, ...] | None
):
    found = changed(WHOLE, avoid=("gpu04", "gpu02", "gpu01"), nodes=nodes)
    assert found == ({} if avoids is None else {frozenset({0, 1, 2}): (frozenset(avoids), avoids)})


def test_a_slot_for_which_slurm_finds_no_node_avoids_none():
    stuck = job(0, admin_comment=f"{AVOIDS}gpu01", reason="BadConstraints")
    found = changed(stuck, avoid=("gpu01",), excluded={900: frozenset({"gpu01"})})
    assert found == {frozenset({0}): (NONE, ())}


def test_of_others_and_of_what_runs_nothing_is_changed():
    others = job(0, array_job_id=815)
    runs = job(1, JobState.RUNNING)
    untagged = job(2, admin_comment="")
    assert changed(others, runs, untagged, avoid=("gpu01",)) == {}
    assert changed(WHOLE, avoid=("gpu01",), excluded={7: NONE}) == {}


def test_slurm_is_asked_only_where_a_node_is_or_was_avoided():
    slots = frozenset({0})
    assert not concerns(Release(814, frozenset(), ("gpu01",)), [WHOLE])
    assert not concerns(Release(814, slots), [WHOLE])
    assert concerns(Release(814, slots, ("gpu01",)), [WHOLE])
    assert concerns(Release(814, slots), [job(0, admin_comment=f"{AVOIDS}gpu01")])
    assert not concerns(Release(814, slots), [job(1, admin_comment=f"{AVOIDS}gpu01")])


def test_a_slot_waits_for_another_node_for_a_minute():
    now_s = 5000.0
    waits = {"held": False, "admin_comment": f"{AVOIDS}gpu01"}
    jobs = [
        job(0, **waits, eligible_s=int(now_s - LONGEST_S)),
        job(1, **waits, eligible_s=int(now_s - LONGEST_S + 1)),
        job(2, held=False, eligible_s=1),
        job(3, admin_comment=f"{AVOIDS}gpu01", eligible_s=1),
        job(4, JobState.RUNNING, admin_comment=f"{AVOIDS}gpu01", eligible_s=1),
    ]
    assert waits_too_long(jobs, now_s) == {814: {0}}


NAMES = st.sampled_from([one.name for one in NODES])
STATES = st.frozensets(st.sampled_from(["DOWN", "DRAIN", "IDLE"]), max_size=2)


@given(
    states=st.lists(STATES, min_size=4, max_size=4),
    avoid=st.lists(NAMES, max_size=6, unique=True),
    own=st.frozensets(NAMES),
)
def test_half_of_what_its_user_leaves_it_can_always_run_it(
    states: list[frozenset[str]], avoid: list[str], own: frozenset[str]
):
    nodes = tuple(replace(each, states=its) for each, its in zip(NODES, states, strict=True))
    could = {each.name for each in nodes if not each.states & {"DOWN", "DRAIN"}} - own
    found = changed(WHOLE, avoid=tuple(avoid), excluded={900: own}, nodes=nodes)
    for excluded, avoids in found.values():
        assert excluded is not None
        assert len(could - excluded) * 2 >= len(could)
        assert set(avoids) <= set(avoid) & could
        assert own <= excluded


def on_two_nodes(gpus: int) -> JobView:
    tres = {"node": "2", "gres/gpu": str(2 * gpus), "gres/gpu:1g.10gb": str(2 * gpus)}
    return replace(WHOLE, tres=tres)


def test_a_replica_on_several_nodes_is_left_as_many_as_it_needs():
    """Each node must have its part of the GPUs, not all of them."""
    slots = frozenset({0, 1, 2})
    avoid = ("gpu01", "gpu02")
    assert changed(on_two_nodes(4), avoid=avoid) == {slots: ({"gpu01", "gpu02"}, avoid)}
    assert changed(on_two_nodes(4), avoid=avoid, nodes=NODES[:3]) == {
        slots: ({"gpu01"}, ("gpu01",))
    }
    assert changed(on_two_nodes(4), avoid=avoid, nodes=NODES[:2]) == {}
    assert changed(on_two_nodes(8), avoid=avoid) == {}
