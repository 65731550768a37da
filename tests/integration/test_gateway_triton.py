"""gRPC to a real Triton on the sandbox: from zero, through a drain, with a key."""

import json
import queue
from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.grpc as triton
from quotas import until_in_force
from service_status import services, until_routed
from waiting import until

from sandbox.cluster import Sandbox
from sandbox.demo.commands import publish_models

pytestmark = pytest.mark.integration

SERVICE = "nlp/called"
HEADERS = {"slicewise-service": SERVICE}
FILE = """\
[service]
name = "called"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
max_replicas = 1
concurrency = 2
keep_alive_s = 1
memory_mib = 512
"""


@pytest.fixture
def address(sandbox: Sandbox) -> Iterator[str]:
    """Where a service of gRPC clients is found."""
    home = sandbox.layout.home / sandbox.state.users["bob"].name
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    models = publish_models(sandbox.layout.models)
    (home / "called.toml").write_text(FILE.format(models=json.dumps(str(models))))
    sandbox.run("bob", ("slicewise", "service", "apply", str(home / "called.toml")))
    until_routed(sandbox, SERVICE)
    yield urlsplit(sandbox.layout.gateway_url).netloc
    sandbox.run("bob", ("slicewise", "service", "delete", SERVICE))
    until(lambda: not services(sandbox))


def tensors(generated: int) -> list[triton.InferInput]:
    found = []
    for name, value in (("CONTEXT_TOKENS", 1), ("GENERATED_TOKENS", generated)):
        tensor = triton.InferInput(name, [1], "INT32")
        tensor.set_data_from_numpy(np.array([value], dtype=np.int32))
        found.append(tensor)
    return found


def test_a_grpc_client_wakes_a_service_and_its_stream_outlives_the_keep_alive(address: str):
    with triton.InferenceServerClient(address) as client:
        answer = client.infer("tokens", tensors(3), headers=HEADERS, client_timeout=240)
        assert answer.as_numpy("TOKENS").shape == (3,)
        assert client.is_model_ready("tokens", headers=HEADERS)
        answers: queue.Queue[tuple[triton.InferResult | None, Exception | None]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=HEADERS)
        # Longer than the keep-alive: what is in flight keeps its replica.
        for generated in (2500, 5):
            client.async_stream_infer("tokens", tensors(generated))
            result, error = answers.get(timeout=240)
            assert error is None
            assert result is not None
            assert result.as_numpy("TOKENS").shape == (generated,)
        client.stop_stream()
