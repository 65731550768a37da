"""Official clients of a real Triton on the sandbox: gRPC from zero, streams, sequences."""

import asyncio
import itertools
import json
import queue
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from measuring_client import Client, asking, measure
from quotas import until_in_force
from service_status import services, status, until_routed
from tritonclient.utils import InferenceServerException
from waiting import until, until_is

from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.gateway.haproxy import HaproxyRuntime
from slicewise.launcher.rules.gateway.types import Gateway
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

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
    until(lambda: SERVICE not in services(sandbox))


def test_clients_by_http_get_the_headers_by_which_they_read_answers(address: str):
    """Of binary tensors, of what is compressed, of a stream, and of what is refused."""
    asked = {"CONTEXT_TOKENS": 100, "GENERATED_TOKENS": 2}
    tensors = []
    for name, value in asked.items():
        tensors.append(triton_http.InferInput(name, [1], "INT32"))
        tensors[-1].set_data_from_numpy(np.array([value], dtype=np.int32), binary_data=True)
    with triton_http.InferenceServerClient(f"{address}/{SERVICE}", network_timeout=120) as client:
        for binary in (True, False):
            wanted = [triton_http.InferRequestedOutput("TOKENS", binary_data=binary)]
            for coding in (None, "gzip", "deflate"):
                how = {"outputs": wanted, "response_compression_algorithm": coding}
                answer = client.infer("tokens", tensors, **how)
                assert answer.as_numpy("TOKENS").shape == (2,)
    url = f"http://{address}/{SERVICE}/v2/models/tokens"

    def head(path: str, *words: str) -> dict[str, str]:
        command = ("curl", "-sS", "-m", "60", "-D", "-", "-o", "/dev/null", *words, f"{url}{path}")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return dict(line.split(": ", 1) for line in done.stdout.strip().splitlines()[1:])

    refusal = head("/infer", "-H", "Content-Encoding: br", "-d", "{}")
    assert refusal["accept-encoding"] == "gzip, deflate"
    stream = head("/generate_stream", "-d", json.dumps(asked))
    assert stream["content-type"].startswith("text/event-stream")


SUMMING = "nlp/summing"
SUM_CONFIG = """\
backend: "python"
max_batch_size: 1
input [{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    {
      name: "START"
      control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }]
    },
    {
      name: "ID"
      control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }]
    }
  ]
  oldest { max_candidate_sequences: 64 }
}
"""
SUM_MODEL = """\
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            # Two replicas stay below what one tenant's clients may ask for in a second.
            time.sleep(0.005)
            tensors = (pb.get_input_tensor_by_name(request, one) for one in ("IN", "START", "ID"))
            value, start, number = (tensor.as_numpy().flat[0] for tensor in tensors)
            if value < 0:
                answers.append(pb.InferenceResponse(error=pb.TritonError("below zero")))
                continue
            self.sums[number] = value + (0 if start else self.sums.get(number, -1000))
            total = np.array([[self.sums[number]]], dtype=np.int32)
            answers.append(pb.InferenceResponse([pb.Tensor("SUM", total)]))
        return answers
"""
SEQUENCES, STEPS = 8, 4


@pytest.fixture(scope="module")
def summing(sandbox: Sandbox) -> Iterator[str]:
    """Where a service with two replicas of a model is found that sums up sequences."""
    home = sandbox.layout.home / sandbox.state.users["bob"].name
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    repository = sandbox.layout.models / "summing"
    (repository / "sum" / "1").mkdir(parents=True)
    (repository / "sum" / "config.pbtxt").write_text(SUM_CONFIG)
    (repository / "sum" / "1" / "model.py").write_text(SUM_MODEL)
    file = home / "summing.toml"
    words = ("--tenant", "nlp", "--name", "summing", "--profile", "1g.18gb", "--output", str(file))
    sandbox.run("bob", ("slicewise", "service", "init", str(repository), *words))
    more = "min_replicas = 2\nmemory_mib = 512\n"
    file.write_text(file.read_text().replace("concurrency = 1 ", "concurrency = 4 ") + more)
    sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
    until(lambda: len(status(sandbox, SUMMING)["slots"]["ready"]) == 2)
    yield urlsplit(sandbox.layout.gateway_url).netloc
    sandbox.run("bob", ("slicewise", "service", "delete", SUMMING))
    until(lambda: not services(sandbox))
    shutil.rmtree(repository)


def test_sequences_are_right_with_two_replicas_over_unary_calls(summing: str):
    headers = {"slicewise-service": SUMMING}
    tensor = {}
    for module in (triton, triton_http):
        tensor[module] = module.InferInput("IN", [1, 1], "INT32")
        tensor[module].set_data_from_numpy(np.array([[3]], dtype=np.int32))
    sums: dict[int, list[int]] = {}
    by_http = triton_http.InferenceServerClient(f"{summing}/{SUMMING}")
    with triton.InferenceServerClient(summing) as by_grpc, by_http:
        for step in range(STEPS):
            ends = {"sequence_start": step == 0, "sequence_end": step == STEPS - 1}
            for number in range(1, SEQUENCES + 1):
                sent = {"sequence_id": number, **ends}
                answer = (
                    by_grpc.infer("sum", [tensor[triton]], headers=headers, **sent)
                    if number % 2
                    else by_http.infer("sum", [tensor[triton_http]], **sent)
                )
                sums.setdefault(number, []).append(int(answer.as_numpy("SUM").flat[0]))
    assert set(map(tuple, sums.values())) == {(3, 6, 9, 12)}


def test_streams_of_sequences_are_right_with_two_replicas(summing: str):
    """Several at the same time: each stays at the replica that took it."""
    answers: queue.Queue[tuple[int, int]] = queue.Queue()

    def heard(number: int, result: triton.InferResult | None, error: Exception | None) -> None:
        answers.put((number, 0 if result is None else int(result.as_numpy("SUM").flat[0])))

    tensor = triton.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[3]], dtype=np.int32))
    clients = {number: triton.InferenceServerClient(summing) for number in range(101, 105)}
    for number, client in clients.items():
        client.start_stream(partial(heard, number), headers={"slicewise-service": SUMMING})
    for step in range(STEPS):
        for number, client in clients.items():
            ends = {"sequence_start": step == 0, "sequence_end": step == STEPS - 1}
            client.async_stream_infer("sum", [tensor], sequence_id=number, **ends)
    found = [answers.get(timeout=60) for _ in range(STEPS * len(clients))]
    for client in clients.values():
        client.stop_stream()
        client.close()
    assert sorted(found) == [(number, 3 * nth) for number in clients for nth in range(1, STEPS + 1)]


def curl(*words: str) -> tuple[int, object]:
    """Status and JSON of an answer."""
    command = ("curl", "-s", "-m", "60", "-w", "\n%{http_code}", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(text or "null")


def test_curl_meets_two_replicas_as_one_server(summing: str):
    url = f"http://{summing}/{SUMMING}/v2"
    assert curl(f"{url}/health/ready") == (200, None)
    status_of_model, metadata = curl(f"{url}/models/sum")
    assert status_of_model == 200
    assert isinstance(metadata, dict)
    assert metadata["platform"] == "python"
    sums = []
    for step in range(STEPS):
        ends = {"sequence_id": 77, "sequence_start": step == 0, "sequence_end": step == STEPS - 1}
        tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [3]}
        body = json.dumps({"parameters": ends, "inputs": [tensor]})
        found, answer = curl(f"{url}/models/sum/infer", "-d", body)
        assert found == 200
        assert isinstance(answer, dict)
        sums += answer["outputs"][0]["data"]
    assert sums == [3, 6, 9, 12]

    def succeeded() -> int:
        said, statistics = curl(f"{url}/models/sum/versions/1/stats")
        assert said == 200
        assert isinstance(statistics, dict)
        return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])

    # Triton counts an inference a moment after its client has the answer.
    until(lambda: succeeded() >= STEPS)
    refused, error = curl("-X", "POST", f"{url}/repository/models/sum/unload")
    assert refused == 403
    assert "SW-GATEWAY-DENIED" in str(error)


def test_statistics_are_the_service_s_by_both_protocols(summing: str):
    headers = {"slicewise-service": SUMMING}
    by_http = triton_http.InferenceServerClient(f"{summing}/{SUMMING}")

    def counted() -> list[tuple[int, ...]]:
        """Inferences, those that succeeded, and batches of one; when the last inference was, and
        how long all took; as each protocol tells.
        """
        (said,) = by_http.get_inference_statistics("sum", "1")["model_stats"]
        success, (batch,) = said["inference_stats"]["success"], said["batch_stats"]
        (called,) = by_grpc.get_inference_statistics("sum", headers=headers).model_stats
        done, (one,) = called.inference_stats.success, called.batch_stats
        counts = (said["inference_count"], success["count"], batch["compute_infer"]["count"])
        return [
            (*counts, said["last_inference"], success["ns"]),
            (
                *(called.inference_count, done.count, one.compute_infer.count),
                *(called.last_inference, done.ns),
            ),
        ]

    def agreed() -> tuple[int, ...]:
        """What both tell; () while they differ: an inference may be counted between the two."""
        told, other = counted()
        return told if told == other else ()

    tensor = triton.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[3]], dtype=np.int32))
    with triton.InferenceServerClient(summing) as by_grpc, by_http:
        *before, last, _ = until(agreed)
        for number in range(1, SEQUENCES + 1):
            ends = {"sequence_start": True, "sequence_end": True}
            by_grpc.infer("sum", [tensor], headers=headers, sequence_id=number, **ends)
        # Triton counts an inference a moment after its client has the answer.
        until_is(lambda: agreed()[:3], tuple(one + SEQUENCES for one in before))
        *_, newest, took_ns = until(agreed)
        assert newest > last
        assert took_ns > 0


def test_failed_calls_are_seen_at_the_gateway(sandbox: Sandbox, summing: str):
    """Triton answers them without a message: only then HAProxy sees their status."""
    settings = load_settings(sandbox.layout.settings_file).gateway

    async def looked() -> Gateway:
        async with HaproxyRuntime(settings) as runtime:
            return await runtime.observe()

    def errors() -> int:
        backend = asyncio.run(looked()).backend_of(SUMMING)
        assert backend is not None
        return sum(server.errors for server in backend.servers)

    tensor = triton.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[-1]], dtype=np.int32))
    before = errors()
    with triton.InferenceServerClient(summing) as client:
        for number in range(1, 4):
            sent = {"sequence_id": number, "sequence_start": True, "sequence_end": True}
            with pytest.raises(InferenceServerException, match="below zero"):
                client.infer("sum", [tensor], headers={"slicewise-service": SUMMING}, **sent)
    until_is(errors, before + 3)


@pytest.mark.parametrize("by_grpc", [False, True])
def test_a_sweep_of_clients_fails_no_request_and_its_statistics_count_each(
    summing: str, by_grpc: bool
):
    def client() -> Client:
        return Client(summing, SUMMING, by_grpc=by_grpc)

    watching = client()
    for clients in (1, 2, 4, 8):
        before = watching.statistics()
        with asking(client, clients) as measured:
            measure(measured, watching)
        assert measured.failed == []
        assert all(
            later.inferences >= earlier.inferences
            for earlier, later in itertools.pairwise(measured.counted)
        )
        until_is(lambda: watching.statistics().inferences, before.inferences + measured.answers)
        counted = watching.statistics().since(before)
        # The model takes one request at a time, and sleeps for 5 ms.
        assert counted.executions == counted.inferences
        assert counted.compute_ns >= 5_000_000 * counted.inferences
        assert counted.queue_ns > 0
        assert counted.queue_ns + counted.compute_ns <= counted.success_ns <= measured.waited_ns
    watching.close()


def test_a_measurement_goes_on_through_a_roll_without_a_failed_request(
    sandbox: Sandbox, summing: str
):
    """What the replaced replicas have counted stays counted."""

    def starts() -> list[float]:
        replicas = status(sandbox, SUMMING)["replicas"]
        return [time.time() - one["age_s"] for one in replicas if one["state"] == "ready"]

    def goes_on() -> bool:
        return len(now := starts()) < 2 or min(now) <= ordered_s

    sandbox.run("bob", ("slicewise", "service", "restart", SUMMING))
    ordered_s = time.time()
    watching = Client(summing, SUMMING, by_grpc=True)
    with (
        asking(lambda: Client(summing, SUMMING, by_grpc=False), 1) as by_http,
        asking(lambda: Client(summing, SUMMING, by_grpc=True), 1) as by_grpc,
    ):
        measure(by_grpc, watching, goes_on)
    watching.close()
    assert by_http.failed + by_grpc.failed == []
    inferences = [one.inferences for one in by_grpc.counted]
    assert inferences == sorted(inferences)
    assert min(by_http.answers, by_grpc.answers) > 0


BATCHING = "nlp/batching"
BATCH_CONFIG = """\
backend: "python"
max_batch_size: 16
input [{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
dynamic_batching { }
"""
BATCH_MODEL = """\
import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        # One request takes as long as sixteen together.
        time.sleep(0.05)
        values = (pb.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests)
        return [pb.InferenceResponse([pb.Tensor("SUM", value)]) for value in values]
"""
CLIENTS = 12


@pytest.fixture
def batching(sandbox: Sandbox) -> Iterator[str]:
    """Where a service is found with one replica of a model that batches, as ``init`` drafts it."""
    home = sandbox.layout.home / sandbox.state.users["bob"].name
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    repository = sandbox.layout.models / "batching"
    (repository / "sum" / "1").mkdir(parents=True)
    (repository / "sum" / "config.pbtxt").write_text(BATCH_CONFIG)
    (repository / "sum" / "1" / "model.py").write_text(BATCH_MODEL)
    file = home / "batching.toml"
    words = ("--tenant", "nlp", "--name", "batching", "--profile", "1g.18gb", "--output", str(file))
    sandbox.run("bob", ("slicewise", "service", "init", str(repository), *words))
    more = "min_replicas = 1\nmemory_mib = 512\np95_ms = 3000\n"
    text = file.read_text().replace("max_replicas = 2 ", "max_replicas = 1 ")
    assert 'concurrency = "auto"' in text
    file.write_text(text + more)
    sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
    until(lambda: len(status(sandbox, BATCHING)["slots"]["ready"]) == 1)
    yield urlsplit(sandbox.layout.gateway_url).netloc
    sandbox.run("bob", ("slicewise", "service", "delete", BATCHING))
    until(lambda: BATCHING not in services(sandbox))
    shutil.rmtree(repository)


def test_a_replica_that_batches_learns_to_answer_several_requests_at_a_time(
    sandbox: Sandbox, batching: str
):
    """With one at a time each batch answers one: the answers of a batch are the gain."""
    watching = triton_http.InferenceServerClient(f"{batching}/{BATCHING}")

    def counted() -> tuple[int, int]:
        (said,) = watching.get_inference_statistics("sum", "1")["model_stats"]
        return said["inference_count"], said["execution_count"]

    with asking(lambda: Client(batching, BATCHING, by_grpc=False), CLIENTS) as measured:
        # It has none while the launcher can't see the gateway.
        learnt = until(
            lambda: (
                (one := status(sandbox, BATCHING)["report"])
                and (one["concurrency"] or 0) >= 6
                and one
            )
        )
        inferences, batches = counted()
        until(lambda: counted()[0] >= inferences + 100)
        more, more_batches = counted()
    watching.close()
    assert measured.failed == []
    assert learnt["is_concurrency_learnt"]
    assert more - inferences >= 2 * (more_batches - batches)


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
