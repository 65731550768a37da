"""Decides which services share replicas: members of one pool whose replicas are alike."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

_OWN = frozenset(
    {
        *("name", "model", "model_file", "model_digest", "model_mib", "measured"),
        *("min_replicas", "max_replicas", "concurrency", "keep_alive_s"),
        *("max_queue_s", "p95_ms", "ttft_ms", "tpot_ms", "deadline_s", "retry_once"),
        *("priority_class", "fair", "weights", "lease_s", "readiness"),
        *("start_timeout_s", "abort_roll_after"),
    }
)
"""Keys in which members may differ. All others say what a replica is, and who may ask it: a server
answers for each model that it has, whichever service's address was asked."""


def shape_of(values: Mapping[str, str]) -> Hashable:
    """What replicas of a service in a pool are, by its directives: alike if this is equal."""
    return tuple(sorted((key, text) for key, text in values.items() if key not in _OWN))


def differing(first: Mapping[str, str], other: Mapping[str, str]) -> Sequence[str]:
    """Return the keys by which replicas of two services are not alike."""
    keys = sorted((first.keys() | other.keys()) - _OWN)
    return tuple(key for key in keys if first.get(key) != other.get(key))


def sharing(
    services: Iterable[tuple[str, str, Mapping[str, str]]],
) -> Sequence[tuple[str, ...]]:
    """Return the services that share replicas, ``tenant/service`` in groups of two or more.

    ``services`` are ``tenant/service``, its Slurm user and its directives. Replicas run as that
    user, so another one's are not shared. Of two that serve models of one name, the first by name
    shares: a replica knows its models by their names alone.
    """
    members: dict[Hashable, dict[str, str]] = defaultdict(dict)
    for key, user, values in sorted(services, key=lambda service: service[0]):
        if "pool" in values:
            group = members[user, shape_of(values)]
            if values.get("model") not in group.values():
                group[key] = values.get("model", "")
    return tuple(tuple(group) for group in members.values() if len(group) > 1)
