"""A replica of a pool without Slurm: a real server behind a real door, as its script starts it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from builders.replica_keys import gateway_directory, replica_keys
from free_ports import free_port
from waiting import PATIENCE_S, until

from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.launcher.probing.prober import Replica, fit_models, probe
from slicewise.launcher.rules.engines.engine import Engine, Probe
from slicewise.launcher.rules.engines.registry import ENGINES, start_settings
from slicewise.launcher.rules.engines.statistics import Answered
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.scripts import door, models
from slicewise.launcher.scripts.render import service_script

OWN = "own"
_START = re.compile(r'    "\$\{shield\[@\]\}" (?!true)(.*?) &\n', re.DOTALL)


@dataclass(frozen=True)
class Served:
    """A replica that serves, its processes, and where its models and its socket are."""

    replica: Replica
    server: subprocess.Popen[bytes]
    repository: Path
    private: Path

    async def fits(
        self,
        *names: str,
        load_timeout_s: float = PATIENCE_S,
        checked: frozenset[str] = frozenset(),
        answered: Mapping[str, Answered] = MappingProxyType({}),
        loading: frozenset[str] = frozenset(),
    ) -> ReplicaModels | None:
        """What it has once it was told to have these models beside its own."""
        services = tuple((name, f"{name}-service") for name in names)
        return await fit_models(
            gateway_directory(),
            replace(
                self.replica,
                models=frozenset({OWN, *names}),
                services=services,
                checked=checked,
                answered=tuple(answered.items()),
                loading=loading,
                load_timeout_s=load_timeout_s,
            ),
        )

    async def is_ready(self, model: str = OWN) -> bool:
        """Whether it is fit, and the model answers an inference."""
        answer = await probe(gateway_directory(), replace(self.replica, model=model))
        return answer.probe is Probe.OURS

    def kill(self) -> None:
        """Kill its server with all that it has started."""
        os.killpg(self.server.pid, signal.SIGKILL)


def _kept(engine: Engine, private: Path, cache: Path, repository: Path) -> subprocess.Popen[bytes]:
    """Start what finds models on the node, and wait until it has found the replica's own."""
    for name in ("weights.py", "pool_weights.py"):
        shutil.copy(Path(models.__file__).with_name(name), private / "readonly")
    words = (engine.sockets[0], engine.health_path, "0", cache, str(1 << 40), repository, OWN)
    program = (sys.executable, private / "readonly" / "pool_weights.py", private, "own-service.7.0")
    keeper = subprocess.Popen((*program, *words), start_new_session=True)
    until((private / "readonly" / "weights").exists)
    return keeper


@contextmanager
def served(
    engine_name: str, command: Path, folder: Path, cache: Path | None = None
) -> Iterator[Served]:
    """Start a replica whose repository is ``folder``'s models; its node may have a ``cache``."""
    repository, private = folder / "models", folder / "p"
    (private / "readonly").mkdir(parents=True)
    (private / "readonly" / "replica.pem").write_text(replica_keys().pem.read_text())
    gateway = (gateway_directory() / "gateway.crt").read_text()
    (private / "readonly" / "gateway.crt").write_text(gateway)
    (private / "readonly" / "models.py").write_text(Path(models.__file__).read_text())
    engine = ENGINES[engine_name]
    spec = service_spec(
        {
            "name": "own-service",
            "tenant": "nlp",
            "model_repository": str(repository),
            "model": OWN,
            "profile": "1g.10gb",
            "pool": "small",
            "engine": engine_name,
        }
    )
    settings = EngineSettings(command=command, python=sys.executable, private_shm=False)
    started = start_settings(engine_name, {engine_name: settings})
    start = _START.search(service_script(spec, started, gateway))
    assert start is not None
    seen_models, keeper = repository, None
    if cache is not None:
        seen_models, keeper = (
            private / "readonly" / "models",
            _kept(engine, private, cache, repository),
        )
    server = subprocess.Popen(
        ("bash", "-c", f"exec {start[1]}"),
        env=os.environ
        | {
            "id": "own-service.7.0",
            "models": str(seen_models),
            "private": str(private),
            "exit_timeout_s": "5",
            "SLURM_JOB_ID": str(os.getpid()),
        },
        start_new_session=True,
    )
    port = free_port()
    ports = [port, *(free_port() for _ in engine.sockets[1:])]
    (private / "server").write_text(f"{server.pid} {' '.join(map(str, ports))}\n")
    doorkeeper = subprocess.Popen(
        (sys.executable, door.__file__, "127.0.0.1", private, *engine.sockets)
    )
    identity, certificate = "own-service.7.0", replica_keys().certificate
    replica = Replica(
        "127.0.0.1", port, certificate, 1000, OWN, identity, engine, grpc_port=ports[-1]
    )
    yield Served(replica, server, repository, private)
    doorkeeper.kill()
    if keeper is not None:
        os.killpg(keeper.pid, signal.SIGKILL)
    server.send_signal(signal.SIGINT)
    try:
        server.wait(PATIENCE_S)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
