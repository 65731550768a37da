"""Which service a model's name means at the gateway, for each tenant whose key asks.

A map has entries of two kinds. ``SCOPE,MODEL`` leads to ``OWNER/NAME``, or to ``-``: none. A scope
is ``TENANT``, ``TENANT/`` (the tenant and all below it) or ``*`` (all tenants). ``SCOPE`` alone
leads to the next scope in which to look; from any other scope, and last of all, that is ``*``.

What no scope has are the tenant's own services: ``NAME`` is ``TENANT/NAME``. HAProxy looks names up
in the same way, in gateway.lua.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

ALL, NONE = "*", "-"
MOST_MODEL_BYTES = 100
"""Characters of a model's name at most, of a service with its owner or an alias; HAProxy cuts what
clients send to as many."""
_SERVICE = re.compile(r"[a-z0-9_][a-z0-9_.-]*/[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def is_service(model: str) -> bool:
    """Whether a model's name has the form of ``OWNER/NAME``."""
    return _SERVICE.fullmatch(model) is not None


def _service(written: str) -> str:
    if not is_service(written):
        raise ValueError("it is not OWNER/NAME of a service")
    return written


def _alias(written: str) -> str:
    if is_service(written):
        raise ValueError("it has the form of OWNER/NAME, which means that service alone")
    return written


ServiceKey = Annotated[str, AfterValidator(_service)]
Alias = Annotated[
    str,
    StringConstraints(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9_./-]{{0,{MOST_MODEL_BYTES - 1}}}$"),
    AfterValidator(_alias),
]


def entry(scope: str, model: str) -> str:
    """Return the key of the entry for a model in a scope."""
    return f"{scope},{model}"


def below(tenant: str) -> str:
    """Return the scope of a tenant with all tenants below it."""
    return f"{tenant}/"


def scopes(models: Mapping[str, str], tenant: str) -> Iterator[str]:
    """Yield the scopes in which to look for a tenant's models: the first with an entry wins."""
    scope: str | None = tenant
    while scope is not None and scope != ALL:
        yield scope
        scope = models.get(scope)
    yield ALL


def meaning(models: Mapping[str, str], tenant: str, model: str) -> str | None:
    """Return the service, ``OWNER/NAME``, that a model's name means for a tenant; None if it means
    none that others share, nor one of the tenant's own by its form.
    """
    services = (models.get(entry(scope, model)) for scope in scopes(models, tenant))
    service = next((service for service in services if service is not None), NONE)
    if service != NONE:
        return service
    if is_service(model):
        return model if model.startswith(f"{tenant}/") else None
    return f"{tenant}/{model}" if is_service(f"{tenant}/{model}") else None


def meanings(models: Mapping[str, str], tenant: str, services: Iterable[str]) -> Mapping[str, str]:
    """Return each name that means a service for a tenant, with the service.

    ``services`` are all there are, ``OWNER/NAME``: the tenant's own are among them.
    """
    prefixes = [f"{scope}," for scope in reversed([*scopes(models, tenant)])]
    named = {
        key.removeprefix(prefix): service
        for prefix in prefixes
        for key, service in models.items()
        if key.startswith(prefix)
    }
    own = {service for service in services if service.startswith(f"{tenant}/")}
    by_default = {service.removeprefix(f"{tenant}/"): service for service in own}
    by_default |= {service: service for service in own}
    return by_default | {model: service for model, service in named.items() if service != NONE}
