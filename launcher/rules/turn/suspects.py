"""Finds nodes on which replicas fail that run elsewhere, and says which service avoids which node.

What a service does to itself must cost no other one: a node counts against all services only if
services of two tenants and of two users fail there again and again, and run elsewhere.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations

from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.messages import MOST_AVOIDED
from slicewise.launcher.rules.turn.state import FAILURES_S, GenerationState, ServiceState, State

SERVICES = 2
"""Services that must have failed on a node."""
FAILURES = 2
"""Failures of a generation on a node after which its service avoids the node."""


def suspect_nodes(state: State, now_s: float) -> Mapping[str, frozenset[str]]:
    """Return each suspect node, with the services (``tenant/service``) that have failed there.

    Only generations that had a ready replica once count: others may have a model that never starts.
    """
    by_node: dict[str, set[str]] = defaultdict(set)
    for key, service in state.items():
        for generation in service.generations.values():
            for failure in generation.failures:
                if generation.is_proved and now_s - failure.at_s < FAILURES_S:
                    by_node[failure.node].add(key)
    return {node: frozenset(keys) for node, keys in by_node.items() if len(keys) >= SERVICES}


def suspects_text(by_node: Mapping[str, frozenset[str]]) -> str:
    """Return a text for operators; "" if no node is suspect."""
    return "; ".join(
        f"{node}: replicas of {', '.join(sorted(by_node[node]))} failed" for node in sorted(by_node)
    )


class AvoidedNodes:
    """The nodes that each service avoids, as far as its next starts are concerned.

    ``users`` are the services' users. A service avoids the nodes on which it fails itself, then
    those on which services of different tenants and different users fail that run elsewhere. One
    that ``users`` lacks counts for itself alone: its user may be that of another one.
    """

    def __init__(self, state: State, users: Mapping[str, str], now_s: float) -> None:
        failing = {
            key: service
            for key, service in state.items()
            for generation in service.generations.values()
            if generation.failures
        }
        self._own = {key: _own(failures, now_s) for key, failures in failing.items()}
        accusers: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for key in failing.keys() & users:
            for node in _accused(failing[key], now_s):
                accusers[node].append((tenant_of(key), users[key]))
        self._shared = [node for node in sorted(accusers) if _are_two(accusers[node])]

    def of(self, key: str) -> tuple[str, ...]:
        """Return the nodes that a service avoids, those first that it knows best."""
        own = self._own.get(key, ())
        return tuple(dict.fromkeys((*own, *self._shared)))[:MOST_AVOIDED]


def _own(service: ServiceState, now_s: float) -> tuple[str, ...]:
    """Return the nodes on which the service's generations fail, the worst first, then the latest.

    A generation that was never ready says something of a node only while it has failed on no other:
    its model may be unable to start anywhere.
    """
    nodes: Counter[str] = Counter()
    last_s: dict[str, float] = {}
    for generation in service.generations.values():
        own_failures = [each for each in generation.failures if now_s - each.at_s < FAILURES_S]
        if generation.is_proved or len({each.node for each in own_failures}) == 1:
            counts = Counter(each.node for each in own_failures)
            nodes.update({node: count for node, count in counts.items() if count >= FAILURES})
            last_s |= {
                each.node: max(each.at_s, last_s.get(each.node, 0.0)) for each in own_failures
            }
    return tuple(sorted(nodes, key=lambda node: (nodes[node], last_s[node]), reverse=True))


def _accused(service: ServiceState, now_s: float) -> Iterable[str]:
    return {
        node
        for generation in service.generations.values()
        for node in _accused_by(generation, now_s)
    }


def _accused_by(generation_state: GenerationState, now_s: float) -> Iterable[str]:
    """Yield the nodes on which the generation failed twice while it ran on another one.

    The end of a borrowed replica accuses no node: its lender may have caused it.
    """
    counts = Counter(
        each.node
        for each in generation_state.failures
        if now_s - each.at_s < FAILURES_S and not each.is_borrowed
    )
    ran = generation_state.ran_on if generation_state.is_proved else frozenset()
    return (node for node, count in counts.items() if count >= FAILURES and ran - {node})


def _are_two(accusers: Iterable[tuple[str, str]]) -> bool:
    """Whether services of two tenants and of two users are among them."""
    return any(a != c and b != d for (a, b), (c, d) in combinations(set(accusers), 2))
