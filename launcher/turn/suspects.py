"""Finds nodes on which replicas of several services fail: their GPUs may be broken."""

from collections import defaultdict
from collections.abc import Mapping

from launcher.turn.state import FAILURES_S, State

SERVICES = 2
"""Services that must have failed on a node."""


def suspect_nodes(state: State, now_s: float) -> Mapping[str, frozenset[str]]:
    """Return each suspect node, with the services (``tenant/service``) that have failed there.

    Only generations that had a ready replica once count: others may have a model that never starts.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for key, service in state.items():
        for one in service.generations.values():
            for failure in one.failures:
                if one.is_proved and now_s - failure.at_s < FAILURES_S:
                    found[failure.node].add(key)
    return {node: frozenset(keys) for node, keys in found.items() if len(keys) >= SERVICES}


def suspects_text(found: Mapping[str, frozenset[str]]) -> str:
    """Return a text for operators; "" if no node is suspect."""
    return "; ".join(
        f"{node}: replicas of {', '.join(sorted(found[node]))} failed" for node in sorted(found)
    )
