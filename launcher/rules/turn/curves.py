"""Keeps what services have learnt of their replicas, for services whose replicas are the same.

A tenant's replicas of one model, engine and shape have one curve, whatever service they are of, and
it outlives services. Other tenants' services count for nothing: each would learn from the other
what its requests are like.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.autoscale.begin import learnt_curve, with_other_replicas
from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity
from slicewise.launcher.rules.autoscale.curve import Curve, Prior
from slicewise.launcher.rules.autoscale.measured import measured_prior
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.autoscale.types import Scaling
from slicewise.launcher.rules.turn.state import ServiceState, State

MOST_CURVES = 64
"""Curves that are kept of a tenant, those learnt last."""
_RENEWED_S = 60.0
"""Seconds after which a curve is kept anew."""
_OWNED_S = 3600.0
"""Seconds without news from a service after which another one's curve takes the place of its."""
_SAME = ("model_repository", "model", "model_file", "engine", "gpus", "nodes", "tensor_parallel")
_ALIKE = ("model_digest", "runtime", "image", "environment", "cpus", "memory_mib", "adapter_rank")
_DIGITS = 16


@dataclass(frozen=True)
class KeptCurve:
    """A curve, the service that has learnt it, and until when, in Unix seconds."""

    curve: Curve
    service: str
    at_s: float


Curves = Mapping[str, KeptCurve]
"""By tenant, and a digest of model, engine and shape."""


def replicas_of(view: ServiceView) -> str:
    """Return what tells a generation's replicas from others: the key of their curve, and what may
    change how long they take within it.
    """
    says = view.directives
    key = (view.profile, *(says.get(name, "") for name in _SAME))
    return f"{view.tenant}/{_digest(key)}:{_digest(says.get(name, '') for name in _ALIKE)}"


def curve_key(replicas: str) -> str:
    """Return the key of the curve of such replicas."""
    return replicas.partition(":")[0]


def _digest(words: Iterable[str]) -> str:
    return sha256("\n".join(words).encode()).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class Serving:
    """A service, the kinds of its replicas that serve, and what its file says was measured."""

    service: str
    kinds: frozenset[str]
    measured: str = ""


def with_replicas(
    service_state: ServiceState, memory: Memory, asked: Scaling, curves: Curves, now: Serving
) -> ServiceState:
    """Begin anew with how long requests take if other replicas serve than before, or if nothing
    was learnt of them yet that is known from elsewhere.

    ``memory`` is what is known of the service. While several kinds serve, all stays as it is.
    """
    is_same = service_state.replicas in now.kinds
    is_blank = asked.learns and memory.capacity == ReplicaCapacity()
    if len(now.kinds) > 1 or (is_same and not is_blank):
        return replace(service_state, memory=memory)
    (replicas,) = now.kinds
    if service_state.memory is None or service_state.replicas:
        begun = with_other_replicas(memory, asked, _prior(curves, now, replicas, service_state))
        memory = memory if is_same and begun.capacity.prior is None else begun
    return replace(service_state, memory=memory, replicas=replicas)


def _prior(
    curves: Curves, now: Serving, replicas: str, service_state: ServiceState
) -> Prior | None:
    """Return what a service begins with that has learnt nothing of such replicas yet.

    What its own requests have shown goes before what was measured with others.
    """
    key = curve_key(replicas)
    if service_state.memory is not None and curve_key(service_state.replicas) == key:
        curve = learnt_curve(service_state.memory)
        if curve is not None:
            return Prior(curve, "learnt before it was changed")
    if (kept := curves.get(key)) is None:
        return measured_prior(now.measured)
    name = kept.service.partition("/")[2]
    by = "earlier" if kept.service == now.service else f"by service {name}"
    return Prior(kept.curve, f"learnt {by}")


def kept(curves: Curves, state: State, now_s: float) -> Curves:
    """Keep what services have learnt since; of services that are gone, what was kept before."""
    kept = dict(curves)
    for service, service_state in state.items():
        key = curve_key(service_state.replicas)
        if service_state.memory is None or not key or not service_state.memory.capacity.is_sampled:
            continue
        if (before := kept.get(key)) is not None:
            is_own = before.service == service
            lasts_s = _RENEWED_S if is_own or before.service not in state else _OWNED_S
            if 0 <= now_s - before.at_s < lasts_s:
                continue
        curve = learnt_curve(service_state.memory)
        if curve is not None and (before is None or curve != before.curve):
            kept[key] = KeptCurve(curve, service, now_s)
    return kept if kept.keys() <= curves.keys() else _newest(kept)


def _newest(curves: Curves) -> Curves:
    by_tenant: dict[str, list[str]] = defaultdict(list)
    for key in sorted(curves, key=lambda key: (-curves[key].at_s, key)):
        by_tenant[tenant_of(key)].append(key)
    return {key: curves[key] for keys in by_tenant.values() for key in keys[:MOST_CURVES]}
