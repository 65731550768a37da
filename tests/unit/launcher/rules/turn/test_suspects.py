"""Tests on which nodes services fail that run well elsewhere."""

from slicewise.launcher.rules.turn.state import FAILURES_S, Failure, GenerationState, ServiceState
from slicewise.launcher.rules.turn.suspects import suspect_nodes, suspects_text

NOW_S = 10_000.0


def failing(*nodes: str, at_s: float = NOW_S - 60, is_proved: bool = True) -> ServiceState:
    failures = tuple(Failure(node, at_s) for node in nodes)
    return ServiceState(None, {7: GenerationState(is_proved=is_proved, failures=failures)})


def test_a_node_on_which_two_services_fail_is_suspect():
    state = {"nlp/bert": failing("gpu01", "gpu02"), "vision/chat": failing("gpu01")}
    found = suspect_nodes(state, NOW_S)
    assert found == {"gpu01": {"nlp/bert", "vision/chat"}}
    assert suspects_text(found) == "gpu01: replicas of nlp/bert, vision/chat failed"


def test_one_service_that_fails_often_is_its_own_fault():
    assert suspect_nodes({"nlp/bert": failing("gpu01", "gpu01")}, NOW_S) == {}


def test_a_model_that_has_never_run_says_nothing_of_a_node():
    state = {"nlp/bert": failing("gpu01", is_proved=False), "vision/chat": failing("gpu01")}
    assert suspect_nodes(state, NOW_S) == {}


def test_old_failures_are_forgotten():
    old = failing("gpu01", at_s=NOW_S - FAILURES_S)
    assert suspect_nodes({"nlp/bert": old, "vision/chat": failing("gpu01")}, NOW_S) == {}
