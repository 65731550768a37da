"""Many small models of one tenant on few slices: real Tritons, and real llama.cpp servers."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from quotas import own_ledger, until_in_force
from service_status import services, until_routed
from waiting import PATIENCE_S, until, until_is, until_true

from slicewise.launcher.rules.autoscale.types import Scaling
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model
from slicewise.slurm_plugin.quota_cycle.share_hours import share_pools
from slicewise.slurm_plugin.rules.accounting.pool_hours import PoolHour, parts

pytestmark = pytest.mark.integration

MODELS, CHATS, SLICES, SEED = 20, 8, 3, 20_261_130
ALL = MODELS + CHATS
FEW = (*range(6), MODELS, MODELS + 1)
"""Models that most tests have: six of Triton, two of llama.cpp."""
CRASHES = 13
"""A number that ends the process of the model that is asked with it."""
SLOW, SLOW_S = 17, 5
"""A number that takes a model so many seconds."""
MODEL = """\
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
            if value[0] == {crashes}:
                os._exit(1)
            if value[0] == {slow}:
                time.sleep({slow_s})
            made = pb_utils.Tensor("MADE", value * 1000 + {number})
            answers.append(pb_utils.InferenceResponse([made]))
        return answers
"""
CONFIG = """\
backend: "python"
input [ { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "MADE" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# Ten of the models have memory at the same time, and a load takes seconds on busy cores.
FILE = """\
[service]
name = "{name}"
tenant = "nlp"
pool = "small"
model_repository = {models}
model = "{name}"
model_mib = 3000
profile = "1g.18gb"
max_replicas = 1
keep_alive_s = 30
max_queue_s = 60
memory_mib = 512
"""

CHAT_FILE = """\
[service]
name = "{name}"
tenant = "nlp"
engine = "llamacpp"
pool = "chats"
model_repository = {models}
model = "{name}"
model_mib = 100
profile = "1g.18gb"
max_replicas = 1
concurrency = 4
keep_alive_s = 30
max_queue_s = 60
memory_mib = 1000
"""


def name_of(number: int) -> str:
    """The first are Triton's, the last are chats."""
    return f"m{number:02}" if number < MODELS else f"c{number - MODELS:02}"


class Pool:
    """Two pools of bob's: of twenty models of Triton, of which a slice has memory for five, and of
    eight of llama.cpp.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.models = sandbox.layout.models / "small"
        self.home = sandbox.layout.home / sandbox.state.users["bob"].name
        self.chats = sandbox.layout.models / "chats"
        self.names = [name_of(number) for number in range(ALL)]

    def publish(self) -> None:
        for name in self.names[MODELS:]:
            (self.chats / name).mkdir(parents=True)
            write_tiny_model(self.chats / name / f"{name}.gguf")
        for number, name in enumerate(self.names[:MODELS]):
            version = self.models / name / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(
                MODEL.format(crashes=CRASHES, slow=SLOW, slow_s=SLOW_S, number=number)
            )
            (self.models / name / "config.pbtxt").write_text(CONFIG)
        for path in (*self.models.rglob("*"), *self.chats.rglob("*"), self.models, self.chats):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def apply(self, numbers: Sequence[int]) -> None:
        names = [name_of(number) for number in numbers]
        for number, name in zip(numbers, names, strict=True):
            file = self.home / f"{name}.toml"
            text, models = (FILE, self.models) if number < MODELS else (CHAT_FILE, self.chats)
            file.write_text(text.format(name=name, models=json.dumps(str(models))))
            self.sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
        for name in names:
            until_routed(self.sandbox, f"nlp/{name}")

    def delete(self) -> None:
        own = {f"nlp/{name}" for name in self.names}
        for service in sorted(own & services(self.sandbox).keys()):
            command = ("slicewise", "service", "delete", service, "--now")
            self.sandbox.run("bob", command, check=False)
        until(lambda: not own & services(self.sandbox).keys())

    def running(self) -> int:
        command = ("squeue", "--me", "-h", "-t", "R,CG", "-o", "%i")
        return len(self.sandbox.run("bob", command).stdout.split())

    def tritons(self) -> set[int]:
        """Pids of the pool's servers."""
        servers = set[int]()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes()
                if b"tritonserver" in words.split(b"\0")[0] and str(self.models).encode() in words:
                    servers.add(int(process.name))
        return servers

    async def ask(self, session: aiohttp.ClientSession, number: int, value: int) -> int:
        """Return the status; with 200 the answer is that model's."""
        name = name_of(number)
        address = f"{self.sandbox.layout.gateway_url}/nlp/{name}"
        if number >= MODELS:
            prompt = {"model": name, "prompt": "a", "max_tokens": 4}
            async with session.post(f"{address}/v1/completions", json=prompt) as answer:
                if answer.status == 200:
                    assert (await answer.json())["model"] == name
                return answer.status
        tensor = {"name": "VALUE", "shape": [1], "datatype": "INT32", "data": [value]}
        body: dict[str, Any] = {"inputs": [tensor]}
        async with session.post(f"{address}/v2/models/{name}/infer", json=body) as answer:
            if answer.status == 200:
                (made,) = (await answer.json())["outputs"][0]["data"]
                assert made == value * 1000 + number
            return answer.status

    async def until_answered(
        self, session: aiohttp.ClientSession, number: int, in_a_row: int = 1
    ) -> None:
        """Ask until so many requests one after the other are answered."""
        answered = 0
        async with asyncio.timeout(PATIENCE_S):
            while answered < in_a_row:
                answered = answered + 1 if await self.ask(session, number, 2) == 200 else 0
                await asyncio.sleep(0 if answered else 1)


@pytest.fixture(scope="module")
def pool(sandbox: Sandbox) -> Iterator[Pool]:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", str(SLICES)))
    until_in_force(sandbox, "nlp")
    services_of_bob = Pool(sandbox)
    services_of_bob.publish()
    services_of_bob.apply(FEW)
    yield services_of_bob
    services_of_bob.delete()


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2 * PATIENCE_S))


async def answered(pool: Pool, numbers: Sequence[int]) -> int:
    """Ask these models, each of which answers; return how many slices they took at most."""
    draw, statuses, most = random.Random(SEED), Counter[int](), 0  # noqa: S311

    async def arrive(session: aiohttp.ClientSession, number: int) -> None:
        statuses[await pool.ask(session, number, draw.randrange(100, 1000))] += 1

    async with client() as session:
        requests = []
        for number in draw.sample(numbers, len(numbers)):
            requests.append(asyncio.create_task(arrive(session, number)))
            await asyncio.sleep(draw.expovariate(10))
            if len(requests) % 40 == 0:
                most = max(most, await asyncio.to_thread(pool.running))
        await asyncio.gather(*requests)
    assert statuses == {200: len(numbers)}
    return max(most, pool.running())


@pytest.mark.promise("Services of a pool share replicas: many models on few slices, none failed.")
async def test_services_of_a_pool_share_replicas(pool: Pool) -> None:
    assert 1 <= await answered(pool, FEW * 8) <= SLICES < len(FEW)


async def test_the_ledger_hears_which_services_used_a_replica(pool: Pool) -> None:
    """Of six that are asked at the same time three at least are at others' replicas."""
    async with client() as session:
        asked = [asyncio.create_task(pool.ask(session, number, SLOW)) for number in range(6)]
        assert await asyncio.gather(*asked) == [200] * 6

    def hours() -> Sequence[PoolHour]:
        with own_ledger(pool.sandbox) as ledger:
            # As if this hour were over.
            return ledger.pools.due(int(time.time()) + 2 * 3600, 100)

    def used_ms(hour: PoolHour) -> int:
        return sum(hour.used_ms.values())

    told = await until_true(lambda: [hour for hour in hours() if used_ms(hour) > 1000])
    for hour in told:
        assert hour.owner not in hour.used_ms
        assert {hour.owner, *hour.used_ms} <= {f"nlp/{name}" for name in pool.names}
        assert used_ms(hour) <= hour.length_ms
        assert sum(parts(hour).values()) == hour.amount_millislice_s > 0
    with own_ledger(pool.sandbox) as ledger:
        share_pools(ledger, int(time.time()) + 2 * 3600, zone="UTC")
    statement = pool.sandbox.run("bob", ("slicewise", "ledger", "statement", "nlp", "--json"))
    lines = json.loads(statement.stdout)["lines"]
    pooled = {line["key"]: line["pooled_millislice_s"] for line in lines}
    assert sum(pooled.values()) == 0
    assert {name for name, amount in pooled.items() if amount > 0} & set(pool.names)


async def test_a_model_that_crashes_costs_no_other_model_a_request(pool: Pool) -> None:
    async with client() as session:
        for number in (0, 1):
            assert await pool.ask(session, number, 1) == 200
        others = [asyncio.create_task(pool.ask(session, 0, value)) for value in range(20, 60)]
        assert await pool.ask(session, 1, CRASHES) >= 500
        assert await asyncio.gather(*others) == [200] * 40
        assert await pool.ask(session, 0, 3) == 200
        # Triton starts its process again, or the launcher loads it; another replica may have a
        # copy, whose answers say nothing of this one.
        await pool.until_answered(session, 1, 10)


async def test_a_killed_server_costs_what_it_worked_on_and_nothing_else(pool: Pool) -> None:
    """All of Triton's are killed, with the models that they have; the chats have other servers."""
    async with client() as session:
        asked = [asyncio.create_task(pool.ask(session, number, 1)) for number in range(6)]
        assert await asyncio.gather(*asked) == [200] * 6
        worked_on = [asyncio.create_task(pool.ask(session, number, SLOW)) for number in range(6)]
        await asyncio.sleep(SLOW_S / 2)
        chats = [asyncio.create_task(pool.ask(session, MODELS, 1)) for _ in range(20)]
        killed = pool.tritons()
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        assert any(status >= 500 for status in await asyncio.gather(*worked_on))
        # HAProxy tries for five seconds, in which a launcher on busy cores may not have seen it.
        await asyncio.gather(*(pool.until_answered(session, number) for number in range(6)))
        asked = [asyncio.create_task(pool.ask(session, number, 2)) for number in range(6)]
        assert await asyncio.gather(*asked) == [200] * 6
        assert await asyncio.gather(*chats) == [200] * 20
    assert not pool.tritons() & killed
    assert 1 <= pool.running() <= SLICES
    with own_ledger(pool.sandbox) as ledger:
        share_pools(ledger, int(time.time()) + 2 * 3600, zone="UTC")
        assert ledger.audit.verify().faults == ()
    statement = pool.sandbox.run("bob", ("slicewise", "ledger", "statement", "nlp", "--json"))
    assert sum(line["pooled_millislice_s"] for line in json.loads(statement.stdout)["lines"]) == 0


async def test_many_models_share_three_slices_and_each_service_keeps_its_objective(
    pool: Pool,
) -> None:
    """Each is asked once at least, the first ones of each pool often."""
    await asyncio.to_thread(pool.apply, [*range(len(FEW) - 2, MODELS), *range(MODELS + 2, ALL)])
    weights = [1 / (rank + 1) for rank in (*range(MODELS), *range(CHATS))]
    often = random.Random(SEED).choices(range(ALL), weights, k=200)  # noqa: S311
    numbers = [*range(ALL), *often]
    assert 1 <= await answered(pool, numbers) <= SLICES
    asked = Counter(map(name_of, numbers))

    def qualities() -> dict[str, dict[str, Any]]:
        shown = services(pool.sandbox)
        reports = {name: shown[f"nlp/{name}"]["report"] or {} for name in asked}
        return {name: report.get("quality") or {"answered": 0} for name, report in reports.items()}

    def uncounted() -> dict[str, dict[str, Any]]:
        return {name: q for name, q in qualities().items() if q["answered"] < asked[name]}

    await asyncio.to_thread(until_is, uncounted, {})
    found = await asyncio.to_thread(qualities)
    late = {name: q for name, q in found.items() if q["objective_met_share"] < Scaling.aim}
    assert not late


def test_all_that_was_started_is_given_back(pool: Pool) -> None:
    until(lambda: pool.running() == 0)
