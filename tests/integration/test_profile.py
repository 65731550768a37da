"""``slicewise profile`` as its user types it: real servers on slices of the sandbox."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quotas import until_in_force
from waiting import until

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.integration

CONFIG = """\
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
dynamic_batching { max_queue_delay_microseconds: 9000000 }
"""
MODEL = """\
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.2)
        found = [pb_utils.get_input_tensor_by_name(one, "X").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in found]
"""


class User:
    """Alice, whose tenant has three slices, and the model's repository."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.home = sandbox.layout.home / sandbox.state.users["alice"].name
        self.repository = sandbox.layout.models / "profiled"

    def words(self, account: str, *words: str, model: str = "steps") -> tuple[str, ...]:
        where = ("--model-repository", str(self.repository), "--account", account)
        return ("slicewise", "profile", "measure", model, *where, "--types", "1g.10gb", *words)

    def queue(self) -> str:
        wanted = ("squeue", "--noheader", "--me", "--name=slicewise-profile", "--format=%i %T")
        return self.sandbox.run("alice", wanted).stdout


@pytest.fixture(scope="module")
def user(sandbox: Sandbox) -> Iterator[User]:
    found = User(sandbox)
    version = found.repository / "steps" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL)
    (found.repository / "tiny").mkdir()
    write_tiny_model(found.repository / "tiny" / "tiny.gguf")
    for path in (found.repository, *found.repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "vision", "--nominal", "3"))
    until_in_force(sandbox, "vision")
    yield found
    sandbox.run("alice", ("scancel", "--me", "--name=slicewise-profile"))


def measured(user: User, file: str) -> dict[int, Any]:
    (batches, data) = ("1,4,8", f"{file};$(x).json")
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [[0.5]]}
    (user.home / data).write_text(json.dumps({"inputs": [tensor]}))
    options = ("--batches", batches, "--processes", "1", "--seconds", "5", "--data", data)
    done = user.sandbox.run("alice", user.words("vision", *options, "--output", file, "--json"))
    return {row["batch"]: row for row in json.loads(done.stdout)["measurements"]}


@pytest.mark.promise("slicewise profile measures which slices a load needs.")
def test_a_table_is_measured_and_says_which_instances_a_load_needs(user: User):
    """A process answers a batch in 200 ms, whatever its size. A busy machine adds to each."""
    rows = measured(user, "steps.json")
    one, four = (rows[batch]["throughput_mrps"] for batch in (1, 4))
    assert (0 < one < 5_025, 0 < four < 20_100, rows[4]["latency_us"] > 200_000) == (True,) * 3
    assert (rows[8]["throughput_mrps"], "max_batch_size" in rows[8]["reason"]) == (0, True)
    load = ("--rate", "40", "--slo-ms", "100000", "--json")
    chosen = user.sandbox.run("alice", ("slicewise", "mig", "instances", "steps.json", *load))
    (instances,) = json.loads(chosen.stdout)["instances"]
    counts = {batch: -(-40_000 // rows[batch]["throughput_mrps"]) for batch in (1, 4)}
    assert (instances["type"], instances["count"]) == ("1g.10gb", min(counts.values()))
    assert counts[instances["batch"]] == instances["count"]


def test_a_language_model_s_tokens_are_measured_and_say_where_they_are_cheapest(user: User):
    variable = ("--environment", "LLAMA_ARG_CTX_SIZE=4096")
    load = ("--prompt-tokens", "100", "--output-tokens", "20", "--seconds", "2")
    options = ("--concurrency", "1,4,300", *load, *variable, "--output", "tiny.json", "--json")
    done = user.sandbox.run("alice", user.words("vision", *options, model="tiny"))
    found = json.loads(done.stdout)
    one, four, many = found["measurements"]
    for row in (one, four):
        figures = row["tokens"]
        assert 80 <= figures["prompt_tokens"] <= 130
        assert figures["output_tokens"] == 20
        # In whole thousandths, and of the same answers.
        assert abs(figures["output_mtps"] - 20 * row["throughput_mrps"]) <= 20
        assert 0 < figures["ttft_p50_us"] <= figures["ttft_p99_us"]
        # A model this small may send its whole answer before a busy reader looks: 0 between two.
        assert 0 <= figures["tpot_p50_us"] <= figures["tpot_p99_us"]
        assert row["latency_us"] >= figures["ttft_p50_us"]
    # llama.cpp knows no more than 256 slots; that it does not start says nothing of fewer.
    assert (many["throughput_mrps"], many["reason"]) == (0, "llama.cpp ended before it was ready")
    best = min((one, four), key=lambda row: -row["tokens"]["output_mtps"])
    assert (found["cheapest"]["type"], found["cheapest"]["concurrency"]) == (
        "1g.10gb",
        best["batch"],
    )
    needed = ("--rate", "1", "--slo-ms", "100000", "--json")
    chosen = user.sandbox.run("alice", ("slicewise", "mig", "instances", "tiny.json", *needed))
    (instances,) = json.loads(chosen.stdout)["instances"]
    assert (instances["type"], instances["count"]) == ("1g.10gb", 1)


def test_who_has_no_quota_hears_so_and_nothing_runs(user: User):
    done = user.sandbox.run("carol", user.words("guest"), check=False)
    assert (done.returncode, "SW-QUOTA-NONE" in done.stderr) == (1, True)


def test_an_interrupt_cancels_the_job(user: User):
    log = user.home / "interrupted.err"
    with Path(log).open("w") as errors:
        words = user.words("vision")
        running = user.sandbox.popen("alice", words, stderr=errors, cwd=user.home)
        until(lambda: "measuring" in log.read_text())
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=120) == 130
    until(lambda: "RUNNING" not in user.queue())
