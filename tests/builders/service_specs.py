"""Services as their files describe them."""

from typing import Any

from cluster.language.service import ServiceSpec, service_spec


def a_spec(**changes: Any) -> ServiceSpec:
    """Service chat of vision on one slice, but for these keys; None leaves a key out."""
    keys: dict[str, object] = {
        "name": "chat",
        "tenant": "vision",
        "model_repository": "/models",
        "model": "m",
        "profile": "1g.10gb",
    }
    return service_spec({k: v for k, v in (keys | changes).items() if v is not None})
