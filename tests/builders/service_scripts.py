"""The batch script of a service on Triton."""

from pathlib import Path

from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.launcher.rules.engines.registry import start_settings
from slicewise.launcher.scripts.render import service_script

TRITON = start_settings(
    "triton", {"triton": EngineSettings(command=Path("/opt/triton server/bin/it's"))}
)
GATEWAY = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
VALUES: dict[str, object] = {
    "name": "chat",
    "tenant": "vision",
    "model_repository": "/models/%@chat",
    "model": "m",
    "profile": "1g.10gb",
    "max_replicas": 4,
}


def script(**change: object) -> str:
    return service_script(service_spec(VALUES | change), TRITON, GATEWAY)
