"""Says with whom a service would share replicas, as ``service apply`` sees its pool."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slicewise.cluster.language.pools import differing, sharing
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.rpc.messages import ServiceView


def pool_notes(spec: ServiceSpec, user: str, views: Iterable[ServiceView]) -> tuple[str, ...]:
    """Return what the owner of a service in a pool should know: none if it shares with all of it.

    ``user`` applies it; ``views`` are the generations of all services that live.
    """
    if spec.pool is None:
        return ()
    own = f"{spec.tenant}/{spec.name}"
    others = {key: view for key, view in _members(spec, views).items() if key != own}
    if not others:
        alone = f"no other service of {spec.tenant} is in it yet, so replicas serve this one alone"
        return (f"pool {spec.pool}: {alone}",)
    values = spec.values()
    groups = sharing(
        [(own, user, values), *((key, view.user, view.directives) for key, view in others.items())]
    )
    with_it = next((group for group in groups if own in group), (own,))
    left = {key: view for key, view in others.items() if key not in with_it}
    return tuple(_why(spec, user, values, left))


def _members(spec: ServiceSpec, views: Iterable[ServiceView]) -> Mapping[str, ServiceView]:
    """The newest generations of the tenant's services that name the pool."""
    newest: dict[str, ServiceView] = {}
    for view in sorted(views, key=lambda view: view.array_job_id):
        if view.tenant == spec.tenant and view.order.delete_s is None:
            newest[f"{view.tenant}/{view.name}"] = view
    return {key: view for key, view in newest.items() if view.directives.get("pool") == spec.pool}


def _why(
    spec: ServiceSpec, user: str, values: Mapping[str, str], left: Mapping[str, ServiceView]
) -> Iterator[str]:
    """Yield why some of the pool do not share with it: a line for each reason."""
    own = f"{spec.tenant}/{spec.name}"
    keys_by_reason: dict[str, list[str]] = {}
    for key, view in sorted(left.items()):
        if view.user != user:
            reason = f"replicas run as {user} here, as {view.user} there"
        elif keys := differing(values, view.directives):
            reason = "; ".join(_difference(values, view.directives, name) for name in keys)
        elif view.directives.get("model") == spec.model:
            first = min(own, key)
            reason = (
                f"both have a model named {spec.model}, and replicas know models by their names:"
                f" only {first}, the first by name, shares with the pool"
            )
        else:
            # Its own name of a model is another one's, which stands in the line before or after.
            continue
        keys_by_reason.setdefault(reason, []).append(key)
    for reason, keys in keys_by_reason.items():
        yield f"pool {spec.pool}: shares no replicas with {_listed(keys)}: {reason}"


def _difference(values: Mapping[str, str], others: Mapping[str, str], name: str) -> str:
    return f"{name} is {values.get(name, 'unset')} here, {others.get(name, 'unset')} there"


def _listed(keys: Sequence[str]) -> str:
    *before, last = keys
    return f"{', '.join(before)} and {last}" if before else last
