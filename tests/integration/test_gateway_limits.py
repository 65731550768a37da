"""Tests limits of tenants, persons and keys in a real HAProxy."""

import asyncio
import json
from collections import Counter
from hashlib import sha256
from itertools import chain
from typing import Any

import grpc
import pytest
from gateway_harness import INFER, Harness, eventually
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.cluster.rpc.key_messages import KeyGrant
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import Load, ServerMode

pytestmark = pytest.mark.integration

ANNA, BOB, OTHER = "swk_aaaa_secret", "swk_bbbb_secret", "swk_cccc_secret"
OF = {
    ANNA: KeyGrant(opens="t", key_id="a" * 12, person="anna"),
    BOB: KeyGrant(opens="t", key_id="b" * 12, person="bob"),
    # Of anna, too.
    OTHER: KeyGrant(opens="t", key_id="c" * 12, person="anna"),
}
KEYS = {sha256(key.encode()).hexdigest(): grant for key, grant in OF.items()}
TENANT, PERSON, KEY = {}, {"person": "anna"}, {"key_id": "a" * 12}


def limited(subject: dict[str, str], **limits: Any) -> SubjectLimits:
    return SubjectLimits(tenant="t", **subject, limits=RequestLimits(**limits))


async def ask(
    gateway: Harness, key: str, path: str = f"/t/a{INFER}", body: bytes = b"{}"
) -> tuple[int, str, dict[str, str]]:
    headers = {"x-api-key": key, "x-slicewise-person": "bob", "x-slicewise-key": "-"}
    url = f"{gateway.settings.url}{path}"
    async with gateway.session.post(url, data=body, headers=headers) as answer:
        return answer.status, await answer.text(), dict(answer.headers)


async def served(gateway: Harness, replicas: Any) -> None:
    target = {replicas[0].endpoint: ServerMode.READY}
    await gateway.route(*(Route(name, 4, target, "triton") for name in ("t/a", "t/b")))


@pytest.mark.parametrize(
    ("subject", "whose", "others"),
    [
        (TENANT, "this tenant", {ANNA: 429, BOB: 429, OTHER: 429}),
        (PERSON, "this person", {ANNA: 429, BOB: 200, OTHER: 429}),
        (KEY, "this API key", {ANNA: 429, BOB: 200, OTHER: 200}),
    ],
)
async def test_requests_of_a_minute_are_limited_and_it_is_said_whose(
    gateway: Harness, replicas, subject: dict[str, str], whose: str, others: dict[str, int]
):
    await served(gateway, replicas)
    await gateway.set_keys(KEYS, limits=(limited(subject, requests_per_minute=3),))
    assert [(await ask(gateway, ANNA))[0] for _ in range(3)] == [200] * 3
    status, text, headers = await ask(gateway, ANNA)
    assert (status, headers["Retry-After"]) == (429, "10")
    assert json.loads(text)["error"].startswith(f"SW-GATEWAY-RATE: {whose} ")
    assert {key: (await ask(gateway, key))[0] for key in others} == others
    # A replica does not learn who asks.
    assert "anna" not in str(replicas[0].headers)
    assert not {"x-slicewise-person", "x-slicewise-key"} & set(replicas[0].headers)
    # Live: another limit, and none.
    await gateway.set_keys(KEYS, limits=(limited(subject, requests_per_minute=50),))
    assert (await ask(gateway, ANNA))[0] == 200
    await gateway.set_keys(KEYS)
    assert (await ask(gateway, ANNA))[0] == 200


@pytest.mark.parametrize("subject", [TENANT, PERSON, KEY])
async def test_no_more_requests_are_in_flight_than_a_limit_allows(
    gateway: Harness, replicas, subject: dict[str, str]
):
    await gateway.route(Route("t/a", 4, {}, "triton"))
    await gateway.set_keys(KEYS, limits=(limited(subject, concurrent=5),))
    asked = [asyncio.create_task(ask(gateway, ANNA)) for _ in range(40)]
    await eventually(lambda: gateway.waits(Load(held=5)))
    await eventually(lambda: _done(asked, 35))
    refused = [task.result() for task in asked if task.done()]
    assert Counter(status for status, _, _ in refused) == {429: 35}
    assert all("SW-GATEWAY-CONCURRENT" in text for _, text, _ in refused)
    # Those that were refused have left; those that wait are served once there is a replica.
    await served(gateway, replicas)
    assert Counter([(await task)[0] for task in asked]) == {429: 35, 200: 5}
    assert [(await ask(gateway, ANNA))[0] for _ in range(6)] == [200] * 6


async def _done(asked: list[asyncio.Task[Any]], number: int) -> bool:
    return sum(task.done() for task in asked) == number


async def test_a_minute_lets_in_what_it_allows_though_all_come_at_once(gateway: Harness, replicas):
    await served(gateway, replicas)
    await gateway.set_keys(KEYS, limits=(limited(PERSON, requests_per_minute=20),))
    keys = chain.from_iterable([ANNA, OTHER] for _ in range(40))
    found = Counter(
        status for status, _, _ in await asyncio.gather(*(ask(gateway, key) for key in keys))
    )
    assert set(found) == {200, 429}
    # Each thread may let one in at the moment in which another one does.
    assert 20 <= found[200] <= 20 + 16
    assert (await ask(gateway, ANNA))[0] == 429


@pytest.mark.parametrize("subject", [TENANT, PERSON, KEY])
async def test_only_the_models_of_a_limit_are_asked(
    gateway: Harness, replicas, subject: dict[str, str]
):
    await served(gateway, replicas)
    await gateway.set_keys(KEYS, limits=(limited(subject, models=("t/b", "u/c")),))
    status, text, _ = await ask(gateway, ANNA)
    assert (status, "its limit names others" in text) == (403, True)
    assert (await ask(gateway, ANNA, f"/t/b{INFER}"))[0] == 200
    await gateway.set_keys(KEYS, limits=(limited(subject, models=()),))
    assert (await ask(gateway, ANNA, f"/t/b{INFER}"))[0] == 403


async def test_all_limits_hold_together_and_0_lets_none_in(gateway: Harness, replicas):
    await served(gateway, replicas)
    limits = (limited(TENANT, concurrent=100), limited(PERSON, requests_per_minute=0))
    await gateway.set_keys(KEYS, limits=limits)
    assert (await ask(gateway, ANNA))[0] == 429
    # Nothing of a large body that was not read hides the refusal.
    assert (await ask(gateway, ANNA, body=b" " * 1_000_000))[0] == 429
    assert (await ask(gateway, BOB))[0] == 200
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for key, code in ((ANNA, grpc.StatusCode.RESOURCE_EXHAUSTED), (BOB, None)):
            metadata = (("slicewise-service", "t/a"), ("x-api-key", key))
            call = stub.ModelInfer(service_pb2.ModelInferRequest(), metadata=metadata)
            if code is None:
                await call
                continue
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is code
            assert "SW-GATEWAY-RATE: this person" in str(raised.value.details())


async def test_a_limit_with_a_name_that_can_be_none_costs_itself_alone(gateway: Harness, replicas):
    await served(gateway, replicas)
    wrong = limited({"person": "x; shutdown sessions"}, concurrent=0)
    await gateway.set_keys(KEYS, limits=(wrong, limited(PERSON, concurrent=0)))
    assert (await ask(gateway, ANNA))[0] == 429
    assert (await ask(gateway, BOB))[0] == 200
