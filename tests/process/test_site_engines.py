"""Each engine that a service file may name is there, and gives the gateway what it needs."""

import os
import subprocess
import sys
from pathlib import Path

TOY = """
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp


class Toy(LlamaCpp):
    title, group = "Toy", "toy"
    http_paths = ("/v1/play",)

    def options(self, spec, /, *, is_measured):
        return (f"--play {spec.model}", '--at "$private/http.sock"')


ENGINE = Toy()
"""
ENTRY_POINTS = """
[slicewise.engines]
toy = toy_engine:ENGINE
broken = toy_engine:NONE
"""
USES = """
from pathlib import Path

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.rules.engines.registry import ENGINES, engine_named, start_settings
from slicewise.launcher.scripts.render import gateway_files, service_script

settings = Settings.model_validate({
    "cluster": {"name": "c", "partitions": ["p"]},
    "gpus": {"A100-80GB": {"whole": ["a100"]}},
    "engines": {"toy": {"command": "/opt/toy"}},
})
spec = service_spec({
    "name": "s", "tenant": "t", "model_repository": "/m", "model": "m", "profile": "a100",
    "engine": "toy",
})
print(service_script(spec, start_settings("toy", settings.engines), ""))
print(gateway_files(GatewaySettings(backends=1, servers=1))["haproxy.cfg"])
try:
    engine_named("broken")
except InvalidInputError as error:
    print(error)
"""


def test_a_site_s_engine_is_one_module_and_an_entry_point(tmp_path: Path):
    """As its installed package has them; nothing of Slicewise knows it."""
    (tmp_path / "toy_engine.py").write_text(TOY)
    package = tmp_path / "toy_engine-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    ran = subprocess.run(
        (sys.executable, "-c", USES),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        text=True,
        capture_output=True,
        check=True,
    )
    script, _, gateway = ran.stdout.partition("# The gateway of all services")
    assert '/opt/toy \\\n        --play m \\\n        --at "$private/http.sock" &' in script
    assert "bool(true) if of_toy !grpc { path_reg ^/v1/play$ }" in gateway
    assert "\nbackend toy1\n" in gateway
    assert "engine: broken can't be used: AttributeError: module 'toy_engine' has" in gateway
    assert "Engines here: triton, llamacpp, vllm, sglang, toy. [SW-SERVICE-ENGINE]" in gateway
