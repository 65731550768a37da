"""Replicas are replaced under steady load: by a new generation, by a restart, and at the end."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from quotas import until_in_force
from service_status import services, status
from steady_load import SteadyLoad
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.trace import Arrival

pytestmark = pytest.mark.integration

NAME, SERVICE = "rolled", "nlp/rolled"
REPLICAS, CONCURRENCY = 2, 2
PATIENCE_S = 240.0
"""Replicas that are replaced one at a time, on a machine that has much else to do."""
RATE_PER_S = 5.0
"""One replica alone can answer them."""
FILE = """\
[service]
name = "rolled"
tenant = "nlp"
model_repository = {models}
model = "{model}"
profile = "1g.18gb"
min_replicas = {replicas}
max_replicas = {slots}
concurrency = {concurrency}
keep_alive_s = 5
memory_mib = 512
environment = {{ GENERATION = "{generation}" }}
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("this model can't start")
"""


class Rolled:
    """A service of bob's that keeps two replicas."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.home = sandbox.layout.home / sandbox.state.users["bob"].name
        self.models = publish_models(sandbox.layout.models)
        self.url = f"{sandbox.layout.gateway_url}/{SERVICE}"
        self._generation = 0

    def slicewise(self, user: str, *words: str) -> str:
        return self.sandbox.run(user, ("slicewise", *words)).stdout

    def give(self, slices: int) -> None:
        self.slicewise("root", "tenant-quota", "set", "nlp", "--nominal", str(slices))
        until_in_force(self.sandbox, "nlp")

    def apply(self, models: Path | None = None, slots: int = REPLICAS) -> int:
        self._generation += 1
        file = self.home / f"{NAME}.toml"
        text = FILE.format(
            models=json.dumps(str(models or self.models)),
            model="tokens",
            replicas=min(REPLICAS, slots),
            slots=slots,
            concurrency=CONCURRENCY,
            generation=self._generation,
        )
        file.write_text(text)
        answer = json.loads(self.slicewise("bob", "service", "apply", str(file), "--json"))
        return int(answer["array_job_id"])

    def status(self) -> Mapping[str, Any]:
        return status(self.sandbox, SERVICE)

    def ready(self) -> dict[int, list[int]]:
        """Slots that serve, by generation."""
        found = self.status()["generations"]
        return {one["array_job_id"]: one["slots"]["ready"] for one in found}

    def starts(self) -> dict[tuple[int, int], float]:
        """When each replica that serves began, in Unix seconds."""
        return {
            (one["array_job_id"], one["slot"]): time.time() - one["age_s"]
            for one in self.status()["replicas"]
            if one["state"] == "ready"
        }

    def nodes(self) -> list[str]:
        """Of the replicas that serve."""
        return [one["node"] for one in self.status()["replicas"] if one["state"] == "ready"]

    def drain(self, node: str) -> None:
        words = (f"NodeName={node}", "State=DRAIN", "Reason=test")
        self.sandbox.run("slurm", ("scontrol", "update", *words))

    def under_load(self, change: Callable[[], object], wanted: Callable[[], object]) -> SteadyLoad:
        """Make that change, and go on until it has come to what is wanted."""

        async def loaded() -> SteadyLoad:
            async with SteadyLoad(self.url, RATE_PER_S) as load:
                await asyncio.sleep(2.0)
                await asyncio.to_thread(change)
                await asyncio.to_thread(until, wanted, PATIENCE_S)
                await asyncio.sleep(2.0)
            return load

        return asyncio.run(loaded())

    def delete(self) -> None:
        self.sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
        until(lambda: NAME not in self.sandbox.run("root", ("squeue", "-h", "-o", "%j")).stdout)
        until(lambda: SERVICE not in services(self.sandbox))


@pytest.fixture(scope="module")
def world(sandbox: Sandbox) -> Rolled:
    return Rolled(sandbox)


def test_with_a_quota_of_one_replica_requests_wait_for_the_new_one(world: Rolled) -> None:
    world.give(1)
    array = world.apply(slots=1)
    until_is(world.ready, {array: [0]})
    arrays: list[int] = []
    load = world.under_load(
        lambda: arrays.append(world.apply(slots=1)), lambda: world.ready() == {arrays[0]: [0]}
    )
    world.delete()
    assert load.failed == []


@pytest.fixture(scope="module")
def applied(world: Rolled) -> Iterator[Rolled]:
    world.give(2 * REPLICAS)
    world.apply()
    yield world
    world.delete()


@pytest.fixture
def service(applied: Rolled) -> Rolled:
    """One generation that has its replicas, whatever the test before did to it."""
    applied.give(2 * REPLICAS)
    until_is(lambda: list(applied.ready().values()), [[0, 1]])
    return applied


@pytest.mark.promise("A new generation takes over without a failed request.")
def test_a_new_generation_takes_over_without_a_failed_request(service: Rolled) -> None:
    arrays: list[int] = []
    load = service.under_load(
        lambda: arrays.append(service.apply()), lambda: service.ready() == {arrays[0]: [0, 1]}
    )
    assert load.failed == []
    assert load.answers != []


def test_where_quota_has_no_room_replicas_are_replaced_one_at_a_time(service: Rolled) -> None:
    service.give(REPLICAS)
    arrays: list[int] = []
    load = service.under_load(
        lambda: arrays.append(service.apply()), lambda: service.ready() == {arrays[0]: [0, 1]}
    )
    assert load.failed == []


def test_a_restart_replaces_every_replica_without_a_failed_request(service: Rolled) -> None:
    """Its array has no slot to spare: one at a time."""
    ordered_s = time.time()

    def replaced() -> bool:
        starts = service.starts()
        return len(starts) == REPLICAS and all(start_s > ordered_s for start_s in starts.values())

    load = service.under_load(
        lambda: service.slicewise("bob", "service", "restart", SERVICE), replaced
    )
    assert load.failed == []


def test_a_drained_node_is_left_without_a_failed_request(service: Rolled) -> None:
    """Its array has no slot to spare: one at a time."""
    (node,) = set(service.nodes())

    def is_left() -> bool:
        nodes = service.nodes()
        return len(nodes) == REPLICAS and node not in nodes

    try:
        load = service.under_load(lambda: service.drain(node), is_left)
    finally:
        resume = ("scontrol", "update", f"NodeName={node}", "State=RESUME")
        service.sandbox.run("slurm", resume)
    assert load.failed == []


def test_a_generation_that_can_not_start_takes_nothing_from_the_one_before(
    service: Rolled,
) -> None:
    (array,) = service.ready()
    broken = service.sandbox.layout.models / "rolled-broken"
    (broken / "tokens" / "1").mkdir(parents=True, exist_ok=True)
    (broken / "tokens" / "1" / "model.py").write_text(BROKEN)
    configuration = (service.models / "tokens" / "config.pbtxt").read_text()
    (broken / "tokens" / "config.pbtxt").write_text(configuration)
    load = service.under_load(
        lambda: service.apply(broken),
        lambda: "the generation before it still serves" in service.status()["note"],
    )
    assert load.failed == []
    assert service.ready()[array] == [0, 1]
    repaired = service.apply()
    until_is(service.ready, {repaired: [0, 1]})


def test_a_deleted_service_finishes_what_it_has(service: Rolled) -> None:
    """More than its places hold: some are in flight, the others wait in its queue."""
    count = 6 * REPLICAS * CONCURRENCY

    async def deleted() -> list[str]:
        async with Load(service.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
            arrivals = [Arrival(0.0, SERVICE, 500, 1000)] * count
            sending = asyncio.create_task(load.replay(arrivals))

            def have_come() -> bool:
                now = service.status()
                return now["in_flight"] + now["backlog"] + len(load.records) == count

            # What comes once it is deleted is refused.
            await asyncio.to_thread(until, have_come)
            words = ("service", "delete", SERVICE)
            deleting = asyncio.to_thread(service.slicewise, "bob", *words)
            await asyncio.gather(sending, deleting)
            return [record.error for record in load.records]

    assert asyncio.run(deleted()) == [""] * count
    assert SERVICE not in service.slicewise("root", "service", "list")
