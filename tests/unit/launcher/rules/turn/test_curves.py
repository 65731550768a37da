"""Tests which service begins with what another one has learnt of the same replicas, and which not.

The services here get tokens from vLLM with objectives of tokens, and learn how many requests each
replica gets.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.gateways import a_server
from builders.service_specs import DIRECTIVES
from builders.service_views import a_running_slot, a_service

from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer
from slicewise.launcher.rules.autoscale.begin import learnt_curve
from slicewise.launcher.rules.autoscale.capacity import FIRST, Level, ReplicaCapacity, Timed
from slicewise.launcher.rules.autoscale.curve import Curve
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.gateway.types import Backend, Gateway, ServerMode
from slicewise.launcher.rules.turn.curves import (
    MOST_CURVES,
    KeptCurve,
    curve_key,
    kept,
    replicas_of,
)
from slicewise.launcher.rules.turn.plan import decide
from slicewise.launcher.rules.turn.state import ServiceState, State

KEYS = DIRECTIVES | {
    "engine": "vllm",
    "max_replicas": "2",
    "concurrency": "auto",
    "max_queue_s": "5",
    "model_digest": "0" * 16,
}
OTHERS = (
    {"model": "other"},
    {"model_repository": "/other"},
    {"engine": "sglang"},
    {"gpus": "2"},
    {"gpus": "2", "tensor_parallel": "1"},
)
"""Changes after which nothing of the replicas is known."""
CHANGED = ({"model_digest": "1" * 16}, {"environment": "A=1"}, {"cpus": "2"})
"""Changes after which what is known is where learning begins."""
MANY = 20.0
MEASURED = "2026-11-29,1:1000:5:50,16:1900:9.5:50"


def of(
    array: int = 814, *, name: str = "chat", profile: str = "1g.10gb", **keys: str
) -> ServiceView:
    says = KEYS | {"name": name} | keys
    slots = (a_running_slot(job_id=900 + array),) if array < 900 else ()
    return a_service(array_job_id=array, name=name, profile=profile, directives=says, slots=slots)


def levels() -> Mapping[int, Level]:
    """A request takes a second and a tenth for each at the replica."""
    times = {step: 1 + 0.1 * 2 ** (step / 2) for step in range(0, 10, 2)}
    return {
        step: Level(300 * took_s, 300 * took_s / 2 ** (step / 2), 300, 1, Timed(took_s, 100))
        for step, took_s in times.items()
    }


LEARNT = Memory(capacity=ReplicaCapacity(limit=int(MANY), levels=levels()))


def state_of(view: ServiceView, memory: Memory = LEARNT) -> ServiceState:
    return ServiceState(memory, {}, replicas=replicas_of(view))


def turned(*views: ServiceView, state: State, curves: Mapping[str, KeptCurve]) -> ServiceState:
    seen = ViewAnswer(observed_s=100.0, complete=True, services=views, tenants=())
    key = f"vision/{views[-1].name}"
    group = {"triton1": Backend(0, 0, (a_server(0, ServerMode.READY),))}
    found = decide(
        seen, Gateway({key: "triton1"}, group, complete=True), {}, state, 100.0, curves=curves
    )
    assert found is not None
    return found[0][key]


def capacity(state: ServiceState) -> ReplicaCapacity:
    assert state.memory is not None
    return state.memory.capacity


def kept_of(view: ServiceView, at_s: float = 50.0) -> dict[str, KeptCurve]:
    return dict(kept({}, {f"vision/{view.name}": state_of(view)}, at_s))


def test_a_sibling_begins_with_what_the_other_has_learnt() -> None:
    known = turned(of(name="talk"), state={}, curves=kept_of(of()))
    assert capacity(known).limit > 10
    assert capacity(known).source == "learnt by service chat"
    assert capacity(turned(of(name="talk"), state={}, curves={})) == ReplicaCapacity()


def test_a_service_that_was_deleted_begins_with_what_it_had_learnt() -> None:
    curves = kept(kept_of(of()), {}, 1e9)
    known = turned(of(), state={}, curves=curves)
    assert (capacity(known).limit > 10, capacity(known).source) == (True, "learnt earlier")


def test_a_new_service_begins_with_what_was_measured_unless_its_replicas_are_known() -> None:
    """16 of them take 1.9 s, less than 5 s more than one."""
    known = turned(of(measured=MEASURED), state={}, curves={})
    assert capacity(known).limit == 16
    assert capacity(known).source == "measured by slicewise profile on 2026-11-29"
    known = turned(of(name="talk", measured=MEASURED), state={}, curves=kept_of(of()))
    assert capacity(known).source == "learnt by service chat"


def test_a_service_that_learns_from_now_on_begins_with_what_is_known_of_its_replicas() -> None:
    """Its file said a number before, or nothing was measured yet: its replicas are the same."""
    told = turned(of(concurrency="4"), state={}, curves={})
    assert capacity(told).prior is None
    for curves, measured in ((kept_of(of(name="talk")), {}), ({}, {"measured": MEASURED})):
        known = turned(of(**measured), state={"vision/chat": told}, curves=curves)
        assert capacity(known).limit > 10
    nothing = turned(of(), state={"vision/chat": told}, curves={})
    assert nothing.memory == turned(of(concurrency="4"), state={}, curves={}).memory


@pytest.mark.parametrize("change", OTHERS)
def test_other_replicas_inherit_nothing(change: dict[str, str]) -> None:
    curves = kept_of(of())
    assert capacity(turned(of(**change), state={}, curves=curves)).prior is None
    before = {"vision/chat": state_of(of())}
    after = turned(of(815, **change), state=before, curves=curves)
    assert (capacity(after).limit, capacity(after).levels, capacity(after).prior) == (
        FIRST,
        {},
        None,
    )


def test_another_shape_inherits_nothing_and_the_first_one_is_known_when_it_comes_back() -> None:
    state = {"vision/chat": state_of(of())}
    curves = kept({}, state, 50.0)
    grown = turned(of(815, profile="3g.40gb"), state=state, curves=curves)
    assert (capacity(grown).limit, capacity(grown).levels) == (FIRST, {})
    back = turned(of(816), state={"vision/chat": grown}, curves=curves)
    assert (capacity(back).limit > 10, capacity(back).source) == (True, "learnt earlier")


def test_another_tenant_s_service_inherits_nothing() -> None:
    stranger = of().model_copy(update={"tenant": "nlp"})
    assert curve_key(replicas_of(stranger)) not in kept_of(of())


@pytest.mark.parametrize("change", CHANGED)
def test_changed_files_or_arguments_are_where_learning_begins(change: dict[str, str]) -> None:
    state = {"vision/chat": state_of(of())}
    after = turned(of(815, **change), state=state, curves={})
    assert (capacity(after).limit > 10, capacity(after).levels) == (True, {})
    assert capacity(after).source == "learnt before it was changed"


def test_the_same_replicas_go_on_with_all_that_is_known() -> None:
    for view in (of(815), of(815, max_replicas="7"), of(950)):
        after = turned(view, state={"vision/chat": state_of(of())}, curves={})
        assert capacity(after) == LEARNT.capacity


def test_what_an_older_launcher_has_saved_is_not_forgotten() -> None:
    known = ServiceState(LEARNT)
    after = turned(of(), state={"vision/chat": known}, curves={})
    assert (capacity(after), after.replicas) == (LEARNT.capacity, replicas_of(of()))


def test_while_the_old_ones_serve_theirs_counts() -> None:
    """The newest generation has none yet: with its few requests the old ones could do little."""
    old, new = of(), of(950, model="other")
    after = turned(old, new, state={"vision/chat": state_of(old)}, curves={})
    assert (capacity(after).limit, after.replicas) == (int(MANY), replicas_of(old))


def test_without_samples_of_its_own_nothing_is_kept() -> None:
    """What it was given is the other's, and may be wrong."""
    known = turned(of(name="talk"), state={}, curves=kept_of(of()))
    assert kept({}, {"vision/talk": known}, 200.0) == {}


def test_a_curve_is_of_one_service_until_that_has_no_news() -> None:
    mine, slower = (
        state_of(of()),
        Memory(capacity=replace(LEARNT.capacity, levels=dict(list(levels().items())[:2]))),
    )
    state = {"vision/chat": mine, "vision/talk": state_of(of(name="talk"), slower)}
    curves = kept({}, state, 100.0)
    (key,) = curves
    assert curves[key].service == "vision/chat"
    assert kept(curves, state, 200.0) == curves
    assert kept(curves, state, 100.0 + 3600)[key].service == "vision/talk"
    alone = {"vision/talk": state["vision/talk"]}
    assert kept(curves, alone, 130.0) == curves
    assert kept(curves, alone, 160.0)[key] == KeptCurve(
        learnt_curve(slower) or Curve(), "vision/talk", 160.0
    )


def test_the_newest_curves_of_each_tenant_are_kept() -> None:
    curves = {f"a/{n}": KeptCurve(Curve(), "a/b", float(n)) for n in range(MOST_CURVES)}
    more = of(name="talk")
    found = kept({**curves, "c/1": KeptCurve(Curve(), "c/d", 0.0)}, {}, 1e6)
    assert len(found) == MOST_CURVES + 1
    many = {f"vision/{n}": KeptCurve(Curve(), "vision/b", float(n)) for n in range(MOST_CURVES)}
    found = kept({**curves, **many}, {"vision/talk": state_of(more)}, 1e6)
    assert "vision/0" not in found
    assert {curve_key(replicas_of(more)), "vision/1", "a/0"} <= found.keys()
