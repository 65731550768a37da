"""Services as their files describe them."""

from typing import Any

from slicewise.cluster.language.service import ServiceSpec, service_spec

DIRECTIVES = {
    "name": "chat",
    "tenant": "vision",
    "model_repository": "/models",
    "model": "m",
    "profile": "1g.10gb",
}
"""What the file of a service must say: service chat of vision on one slice."""


def a_spec(**changes: Any) -> ServiceSpec:
    """The service of ``DIRECTIVES``, but for these keys; None leaves a key out."""
    return service_spec({k: v for k, v in (DIRECTIVES | changes).items() if v is not None})
