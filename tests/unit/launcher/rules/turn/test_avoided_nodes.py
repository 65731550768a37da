"""Tests which service avoids which node, and that no tenant can turn others away from one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slicewise.cluster.rpc.messages import MOST_AVOIDED
from slicewise.launcher.rules.turn.state import FAILURES_S, Failure, GenerationState, ServiceState
from slicewise.launcher.rules.turn.suspects import AvoidedNodes

NOW_S = 10_000.0
USERS = {"nlp/bert": "bob", "nlp/chat": "dora", "vision/cat": "alice", "guest/new": "carol"}
OTHER = "guest/new"
"""A service that has not failed."""


def failing(
    *nodes: str,
    at_s: float = NOW_S - 60,
    is_proved: bool = True,
    ran_on: frozenset[str] = frozenset({"gpu09"}),
    is_borrowed: bool = False,
) -> ServiceState:
    failures = tuple(Failure(node, at_s, is_borrowed) for node in nodes)
    return ServiceState(
        None, {7: GenerationState(is_proved=is_proved, failures=failures, ran_on=ran_on)}
    )


def avoided(state: dict[str, ServiceState], key: str, now_s: float = NOW_S) -> tuple[str, ...]:
    return AvoidedNodes(state, USERS, now_s).of(key)


@pytest.mark.parametrize(
    ("state", "nodes"),
    [
        (failing("gpu01"), ()),
        (failing("gpu01", "gpu01"), ("gpu01",)),
        (failing("gpu01", "gpu02", "gpu01"), ("gpu01",)),
        (failing("gpu01", "gpu01", "gpu02", "gpu02", "gpu02"), ("gpu02", "gpu01")),
        (failing("gpu01", "gpu01", at_s=NOW_S - FAILURES_S), ()),
        # It tries another node, and learns that it is its model that can't start.
        (failing("gpu01", "gpu01", is_proved=False, ran_on=frozenset()), ("gpu01",)),
        (failing("gpu01", "gpu01", "gpu02", is_proved=False, ran_on=frozenset()), ()),
    ],
)
def test_after_two_failures_of_its_own_a_service_avoids_a_node(
    state: ServiceState, nodes: tuple[str, ...]
):
    found = {"nlp/bert": state}
    assert avoided(found, "nlp/bert") == nodes
    assert avoided(found, OTHER) == ()


@pytest.mark.parametrize("is_proved", [True, False])
def test_one_failure_of_each_of_two_generations_is_none_that_repeats(*, is_proved: bool):
    """Each is the first failure of a model that the other one does not have."""
    found = [failing("gpu01", is_proved=is_proved).generations[7] for _ in range(2)]
    assert avoided({OTHER: ServiceState(None, dict(enumerate(found)))}, OTHER) == ()
    twice = {7: TWICE.generations[7], 8: found[0]}
    assert avoided({OTHER: ServiceState(None, twice)}, OTHER) == ("gpu01",)


def test_of_nodes_that_failed_as_often_the_latest_comes_first():
    """Of two nodes one is avoided, and the other one may have been repaired since."""
    for nodes in (("gpu01", "gpu02") * 2, ("gpu02", "gpu01") * 2):
        failures = tuple(Failure(node, float(at_s)) for at_s, node in enumerate(nodes))
        state = ServiceState(None, {7: GenerationState(is_proved=True, failures=failures)})
        assert avoided({OTHER: state}, OTHER, 5.0) == nodes[:1:-1]


def test_all_avoid_a_node_on_which_services_of_two_tenants_fail_that_run_elsewhere():
    state = {"nlp/bert": failing("gpu01", "gpu01"), "vision/cat": failing("gpu01", "gpu01")}
    assert avoided(state, OTHER) == ("gpu01",)
    assert avoided(state, OTHER, NOW_S + FAILURES_S) == ()


def test_a_service_that_left_the_view_is_no_second_user():
    """Its user may be that of the other one."""
    state = {"nlp/bert": TWICE, "vision/cat": TWICE}
    assert AvoidedNodes(state, {"nlp/bert": "bob"}, NOW_S).of(OTHER) == ()


TWICE = failing("gpu01", "gpu01")


@pytest.mark.parametrize(
    ("second", "state"),
    [
        ("nlp/chat", TWICE),  # the same tenant
        ("own/trap", TWICE),  # another tenant of the same user
        ("vision/cat", failing("gpu01")),  # once
        ("vision/cat", failing("gpu01", "gpu01", ran_on=frozenset())),  # it runs nowhere
        ("vision/cat", failing("gpu01", "gpu01", ran_on=frozenset({"gpu01"}))),
        ("vision/cat", failing("gpu01", "gpu01", is_borrowed=True)),  # a lender may have ended it
    ],
)
def test_others_go_on_using_a_node_that_one_tenant_speaks_ill_of(second: str, state: ServiceState):
    found = {"nlp/bert": TWICE, second: state}
    assert AvoidedNodes(found, {**USERS, "own/trap": "bob"}, NOW_S).of(OTHER) == ()


def test_what_it_knows_itself_comes_first_and_the_list_has_an_end():
    nodes = [f"gpu{number:02}" for number in range(9)] * 2
    state = {"nlp/bert": failing(*nodes), "vision/cat": failing(*nodes)}
    assert len(avoided(state, OTHER)) == 9
    state[OTHER] = failing(*["zeta"] * 2)
    assert avoided(state, OTHER)[0] == "zeta"
    state[OTHER] = failing(*[f"n{number}" for number in range(20)] * 2)
    assert len(avoided(state, OTHER)) == MOST_AVOIDED


NODE = st.sampled_from(["gpu01", "gpu02", "gpu03"])
SERVICE = st.builds(
    failing,
    st.just("gpu01"),
    NODE,
    NODE,
    NODE,
    is_proved=st.booleans(),
    ran_on=st.frozensets(NODE),
)


@given(
    trap=st.dictionaries(st.integers(0, 5), SERVICE, max_size=6),
    honest=SERVICE,
    gone=st.frozensets(st.integers(0, 5)),
)
@example(trap={0: TWICE, 1: TWICE}, honest=TWICE, gone=frozenset({1}))
def test_whatever_one_users_services_do_others_avoid_only_what_an_honest_one_avoids(
    trap: dict[int, ServiceState], honest: ServiceState, gone: frozenset[int]
):
    """Services of one user, in as many tenants as they like, turn no other service away by
    themselves, also while the users of those that have just left the view are not known."""
    state = {f"t{number % 2}/trap{number}": one for number, one in trap.items()}
    left = {key for key in state if int(key[-1]) not in gone}
    users = dict.fromkeys(left, "mallory")
    assert AvoidedNodes(state, users, NOW_S).of(OTHER) == ()
    state["vision/cat"] = honest
    users["vision/cat"] = "alice"
    found = AvoidedNodes(state, users, NOW_S)
    assert set(found.of(OTHER)) <= set(
        AvoidedNodes({"vision/cat": honest}, USERS, NOW_S).of("vision/cat")
    )
