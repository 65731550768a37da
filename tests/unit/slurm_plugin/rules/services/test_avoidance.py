"""Tests which nodes slots are kept off, and that this never keeps one from starting."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import a_node
from builders.service_views import a_service, slots_in
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobTag, JobView, NodeView
from slicewise.cluster.language.slurm.interface import JobChange, Tasks
from slicewise.cluster.language.starts import StartClass, StartState, StartTrace, Weights
from slicewise.slurm_plugin.rules.services.avoidance import (
    FOR_WEIGHTS_S,
    LONGEST_S,
    Release,
    avoidance_changes,
    concerns,
    lacking_weights,
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


def test_slurm_is_asked_only_where_a_slot_is_to_avoid_other_nodes_than_it_does():
    def asks(slots: frozenset[int], avoid: tuple[str, ...], one: JobView) -> bool:
        return concerns(Release(814, slots, avoid), [one], NODES)

    slots, avoiding = frozenset({0}), job(0, admin_comment=f"{AVOIDS}gpu01")
    assert not asks(frozenset(), ("gpu01",), WHOLE)
    assert not asks(slots, (), WHOLE)
    assert asks(slots, ("gpu01",), WHOLE)
    assert asks(slots, (), avoiding)
    assert asks(slots, ("gpu02",), avoiding)
    assert not asks(slots, ("gpu01",), avoiding)
    assert asks(slots, ("gpu01",), replace(avoiding, reason="BadConstraints"))
    assert not asks(slots, (), job(1, admin_comment=f"{AVOIDS}gpu01"))


def start(
    node: str = "gpu02",
    start_class: StartClass = "copied",
    size: int | None = 9,
    state: StartState = "ready",
    array: int = 814,
) -> StartTrace:
    return StartTrace(array, 0, {}, state, Weights(start_class, size), node)


def lacking(
    *traces: StartTrace,
    nodes: tuple[NodeView, ...] = NODES[:2],
    waiting: int = 0,
    slots: frozenset[int] = frozenset({0}),
    one: JobView = WHOLE,
) -> tuple[str, ...]:
    services = [a_service(slots=slots_in(*["released"] * waiting, "held", "running"))]
    return lacking_weights(Release(814, slots), traces, services, [one], nodes)


@pytest.mark.parametrize(
    ("traces", "lack"),
    [
        ([start()], ("gpu01",)),
        ([start(start_class="node")], ("gpu01",)),
        ([start(start_class="remote")], ()),
        ([start(start_class="pool")], ()),
        ([start(start_class="pool_node")], ()),
        # The copy has gone since, or is of the model as it was before.
        ([start(), start(start_class="remote")], ()),
        ([start(), start("gpu01", size=10)], ("gpu02",)),
        # A start that is not ready has not told where its weights were.
        ([start(), start(start_class="remote", state="ended")], ("gpu01",)),
        # Both have them.
        ([start(), start("gpu01")], ()),
        # Of another file.
        ([start(array=813)], ()),
        ([], ()),
    ],
)
def test_a_slot_avoids_nodes_without_its_weights_as_the_last_starts_found_them(
    traces: list[StartTrace], lack: tuple[str, ...]
):
    assert lacking(*traces) == lack


@pytest.mark.parametrize(
    ("first", "second", "lack"),
    [
        ({}, {"held": 6}, ("gpu01",)),
        # Full, of no use, or without CPUs.
        ({}, {"held": 7}, ()),
        ({}, {"blocked": "no CPU"}, ()),
        ({}, {"states": frozenset({"IDLE", "DRAIN"})}, ()),
        # Only the one with the weights has a free slice.
        ({"held": 7}, {}, ()),
        # Slurm fills nodes of a lower weight first.
        ({}, {"weight": 2}, ()),
        ({"weight": 2}, {}, ()),
        ({"weight": 1, "held": 7}, {"weight": 2}, ()),
    ],
)
def test_only_free_slices_of_the_lowest_weight_count(
    first: Mapping[str, Any], second: Mapping[str, Any], lack: tuple[str, ...]
):
    assert lacking(start(), nodes=(a_node("gpu01", **first), a_node("gpu02", **second))) == lack


def test_there_is_room_for_all_slots_that_are_released_and_for_those_that_wait():
    nodes = (a_node("gpu01"), a_node("gpu02", held=4))
    three = frozenset({0, 1, 2})
    assert lacking(start(), nodes=nodes, slots=three) == ("gpu01",)
    assert lacking(start(), nodes=nodes, slots=three, waiting=1) == ()
    assert lacking(start(), nodes=nodes, waiting=2) == ("gpu01",)


def test_where_too_many_nodes_have_a_free_slice_slurm_chooses():
    assert lacking(start(), nodes=NODES) == ()
    assert lacking(start(), start("gpu01"), nodes=NODES) == ("gpu03", "gpu04")
    full = a_node("gpu01", held=7)
    assert lacking(start(), nodes=(full, *NODES[1:])) == ("gpu03", "gpu04")


def test_what_is_avoided_already_stays_while_it_does():
    avoiding = job(0, admin_comment=f"{AVOIDS}gpu01,gpu03")
    nodes = (*NODES[:2], a_node("gpu03", held=7), a_node("gpu04", held=7))
    assert lacking(start(), nodes=nodes, one=avoiding) == ("gpu01", "gpu03")
    assert lacking(start(), nodes=nodes) == ("gpu01",)
    assert lacking(start("gpu01"), nodes=nodes, one=avoiding) == ("gpu02",)


def test_for_weights_a_slot_waits_seconds():
    waits = job(0, held=False, reason="Resources", admin_comment=f"{AVOIDS}gpu01", eligible_s=100)
    assert waits_too_long([waits], 100 + FOR_WEIGHTS_S, {814}) == {814: {0}}
    assert waits_too_long([waits], 99 + FOR_WEIGHTS_S, {814}) == {}
    assert waits_too_long([waits], 100 + FOR_WEIGHTS_S, {815}) == {}


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
