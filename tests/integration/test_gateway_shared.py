"""Services that others may ask, and the one address of a site: who a real HAProxy lets in where."""

import asyncio
import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import openai
import pytest
from builders.service_views import a_service
from builders.tenants import policy_of, tenant
from gateway_harness import CHAT, INFER, Harness, Replica, eventually, gateway_up, statistics_up
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import PATIENCE_S
from yarl import URL

from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.slurm_plugin.rules.services.shared_models import model_entries

pytestmark = pytest.mark.integration

# w is below t.
POLICY = policy_of(tenant("t"), tenant("w", parent="t"), tenant("u"), tenant("s"), tenant("v"))
AUDIENCES = {
    "t/chat": "",
    "u/chat": "*",
    "u/big": "t",
    "s/big": "w",
    "u/secret": "",
    "u/tensors": "t",
}
MODELS = model_entries(
    POLICY,
    [
        a_service(
            tenant=key.partition("/")[0],
            name=key.partition("/")[2],
            directives={"audience": audience} if audience else {},
        )
        for key, audience in AUDIENCES.items()
    ],
    {"gpt-4": "u/big", "org/Secret-7B": "u/secret"},
)
OF = {
    "key-t": "t",
    "key-w": "w",
    "key-u": "u",
    "key-v": "v",
    "key-t-chat": "t/chat",
    "key-t-big": "t/u/big",
}
KEYS = {sha256(key.encode()).hexdigest(): of for key, of in OF.items()}


@pytest.fixture
async def gateway(tmp_path: Path, replicas: tuple[Replica, Replica]) -> Any:
    places = {"services": 8, "backends": 6, "services_per_tenant": 8}
    async with gateway_up(tmp_path, **places, buffer_kib=16) as harness:
        await serve(harness, *replicas)
        yield harness


async def serve(gateway: Harness, *replicas: Replica) -> None:
    targets = {one.endpoint: ServerMode.READY for one in replicas[:1]}
    triton = {replicas[1].endpoint: ServerMode.READY}
    await gateway.route(
        *(Route(key, 8, targets, "llamacpp") for key in AUDIENCES if key != "u/tensors"),
        Route("u/tensors", 8, triton, "triton"),
    )
    await gateway.set_keys(KEYS, models=MODELS)


async def asked(
    gateway: Harness, key: str, body: object, path: str = CHAT, **headers: str
) -> tuple[int, str]:
    """The status, and the code of an error."""
    sent = {"authorization": f"Bearer {key}"} if key else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = URL(f"{gateway.settings.url}{path}", encoded=True)
    options: dict[str, Any] = {"data": data, "headers": sent, "allow_redirects": False}
    async with gateway.session.post(url, **options) as answer:
        said = await answer.json(content_type=None)
        error = said.get("error") if isinstance(said, dict) else None
        code = error if isinstance(error, str) else (error or {}).get("code", "")
        return answer.status, code.partition(":")[0]


def reached(replica: Replica) -> str:
    return replica.headers["x-slicewise-service"]


MEANS = [
    ("key-t", "chat", "t/chat"),
    ("key-t", "u/chat", "u/chat"),
    ("key-t", "t/chat", "t/chat"),
    ("key-t", "big", "u/big"),
    ("key-t", "gpt-4", "u/big"),
    ("key-w", "chat", "u/chat"),
    ("key-w", "gpt-4", "u/big"),
    ("key-w", "u/big", "u/big"),
    ("key-w", "s/big", "s/big"),
    ("key-v", "chat", "u/chat"),
    ("key-u", "chat", "u/chat"),
    ("key-u", "secret", "u/secret"),
    ("key-u", "org/Secret-7B", "u/secret"),
    ("key-t-chat", "chat", "t/chat"),
    ("key-t-chat", "t/chat", "t/chat"),
    ("key-t-big", "big", "u/big"),
    ("key-t-big", "gpt-4", "u/big"),
]
UNKNOWN, OTHER_SERVICE = (404, "SW-GATEWAY-UNKNOWN"), (403, "SW-GATEWAY-KEY-SERVICE")
REFUSED = [
    ("", "chat", (401, "SW-GATEWAY-KEY")),
    ("key-none", "u/chat", (401, "SW-GATEWAY-KEY")),
    # Two owners share that name with w.
    ("key-w", "big", UNKNOWN),
    ("key-v", "big", UNKNOWN),
    ("key-v", "gpt-4", UNKNOWN),
    ("key-v", "u/big", UNKNOWN),
    ("key-t", "s/big", UNKNOWN),
    # Those above or below have what is theirs for themselves.
    ("key-w", "t/chat", UNKNOWN),
    ("key-t", "u/secret", UNKNOWN),
    ("key-t", "secret", UNKNOWN),
    ("key-t", "org/Secret-7B", UNKNOWN),
    ("key-t", "u/none", UNKNOWN),
    ("key-t", "none", UNKNOWN),
    # No model of OpenAI's API.
    ("key-t", "u/tensors", UNKNOWN),
    ("key-t", "tensors", UNKNOWN),
    ("key-t", "u/big:none", UNKNOWN),
    *(
        ("key-t-chat", model, OTHER_SERVICE)
        for model in ("u/chat", "big", "gpt-4", "none", "u/secret", "u/none", "")
    ),
    *(("key-t-big", model, OTHER_SERVICE) for model in ("chat", "t/chat", "u/chat", "none")),
    # What would be another key of a map, or another path.
    *(
        ("key-t", model, UNKNOWN)
        for model in (
            *("", "v1", "*", "*,chat", "u/,big", "t", "t/", "/", "u/", "/chat", "-"),
            *(
                "u/big ",
                " u/big",
                "u/big\t",
                "u//big",
                "u/big/",
                "./u/big",
                "u/x/../big",
                "../u/big",
            ),
            *("u/secret,x", "x u/big", "U/big", "u/BIG", "u%2Fbig", "u\u2215big", "u/b\u0456g"),
            *("t/u/big", "t,u/big", "t/,u/big", "u/big\u0000", "u/big\n", "a" * 5000, "u/big" * 99),
            *("u/secret:a", "u:big", ":u/big", "gpt-4/", "org/Secret-7b", "chat/v1", "t/chat/x"),
        )
    ),
]


@pytest.mark.promise("One address leads a key to all models that its tenant may use.")
async def test_a_model_at_the_site_s_address_means_what_the_key_s_tenant_may_use(
    gateway: Harness, replicas: tuple[Replica, Replica]
):
    found = {}
    for key, model, _ in MEANS:
        assert await asked(gateway, key, {"model": model, "messages": []}) == (200, ""), model
        found[key, model] = reached(replicas[0])
        # The engine has it by its own name.
        sent = json.loads(replicas[0].bodies[-1])
        adapter = model.partition(":")[1:]
        name = found[key, model].partition("/")[2] + "".join(adapter)
        assert sent == {"model": name, "messages": []}
    assert found == {(key, model): service for key, model, service in MEANS}
    assert set(replicas[0].paths) == {CHAT}


@pytest.mark.promise("No name of a model leads to a service whose audience lacks the asker.")
async def test_no_name_of_a_model_opens_what_its_audience_lacks(
    gateway: Harness, replicas: tuple[Replica, Replica]
):
    found = [
        (key, model[:40], await asked(gateway, key, {"model": model})) for key, model, _ in REFUSED
    ]
    wanted = [(key, model[:40], said) for key, model, said in REFUSED]
    # JSON writes some signs as escapes, which is no plain text.
    plain = [
        (one, other)
        for one, other in zip(found, wanted, strict=True)
        if one[2] != (400, "SW-GATEWAY-MODEL")
    ]
    assert [one for one, _ in plain] == [other for _, other in plain]
    assert replicas[0].bodies == []
    raw = [
        (b'{"model": "chat", "model": "u/secret"}', 400),
        (b'{"mod\\u0065l": "u/secret", "model": "u/none"}', 404),
        (b'{"model": "u\\/secret"}', 400),
        (b'{"model": "u/b\xd1\x96g"}', 404),
        (b'{"model": "u/secret\xff"}', 404),
        (b'{"x": {"model": "chat"}, "model": "u/secret"}', 404),
    ]
    for body, status in raw:
        assert (await asked(gateway, "key-t", body))[0] == status, body
    assert replicas[0].bodies == []


async def test_nothing_beside_the_body_leads_elsewhere(
    gateway: Harness, replicas: tuple[Replica, Replica]
):
    body = {"model": "chat"}
    for headers in (
        {"host": "secret.u.example"},
        {"slicewise_service": "u/secret"},
        {"x_slicewise_service": "u/secret"},
    ):
        assert await asked(gateway, "key-t", body, **headers) == (200, "")
        assert reached(replicas[0]) == "t/chat"
    for path in ("/v1", "/v1/", "/v1/secret/v1/chat/completions", "/v1/../u/secret/v1/completions"):
        assert (await asked(gateway, "key-t", body, path))[0] in {403, 404}, path
    # Of two keys the first header's is the request's, unless only the other one is a key.
    assert await asked(gateway, "key-u", {"model": "secret"}, x_api_key="key-t") == UNKNOWN
    assert (await asked(gateway, "key-u", {"model": "secret"}, x_api_key="none"))[0] == 200
    assert (await asked(gateway, "key-t", {"model": "big"}, x_api_key="key-t-chat"))[0] == 200
    assert len(replicas[0].bodies) == 5


ADDRESSES = [
    ("key-t", "u/big", (200, "")),
    ("key-w", "u/big", (200, "")),
    ("key-t-big", "u/big", (200, "")),
    ("key-v", "u/chat", (200, "")),
    ("key-t-chat", "t/chat", (200, "")),
    *(
        (key, service, (403, "SW-GATEWAY-KEY-TENANT"))
        for key, service in (
            *(("key-v", "u/big"), ("key-v", "u/none"), ("key-t", "u/secret"), ("key-t", "u/none")),
            *(("key-w", "t/chat"), ("key-t-chat", "u/big"), ("key-t-big", "u/chat")),
            *(("key-t", "u/se,big"), ("key-t", "u/secret,big")),
        )
    ),
    ("key-t-big", "t/chat", OTHER_SERVICE),
    ("", "u/chat", (401, "SW-GATEWAY-KEY")),
]


async def test_a_key_of_the_audience_opens_the_service_s_own_address(
    gateway: Harness, replicas: tuple[Replica, Replica]
):
    found = [
        (key, service, await asked(gateway, key, {"model": "any"}, f"/{service}{CHAT}"))
        for key, service, _ in ADDRESSES
    ]
    assert found == ADDRESSES
    # By the owner's one address only its own keys come in.
    for key, status in (("key-u", 200), ("key-t", 403), ("key-t-big", 403)):
        assert (await asked(gateway, key, {"model": "big"}, f"/u{CHAT}"))[0] == status


async def test_engines_of_other_apis_are_shared_by_both_protocols(
    gateway: Harness, replicas: tuple[Replica, Replica]
):
    for key, status in (("key-t", 200), ("key-w", 200), ("key-v", 403), ("key-t-chat", 403)):
        assert (await asked(gateway, key, {}, f"/u/tensors{INFER}"))[0] == status
    found = {}
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for key in ("key-t", "key-v", "key-t-big"):
            metadata = (("slicewise-service", "u/tensors"), ("authorization", f"Bearer {key}"))
            try:
                await stub.ModelInfer(service_pb2.ModelInferRequest(), metadata=metadata)
                found[key] = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                found[key] = error.code()
    denied = grpc.StatusCode.PERMISSION_DENIED
    assert found == {"key-t": grpc.StatusCode.OK, "key-v": denied, "key-t-big": denied}


async def test_models_are_those_that_the_key_may_use_by_names_that_it_can_give(gateway: Harness):
    listed = {}
    async with statistics_up(gateway, models=MODELS) as turned:
        groups = {key: "triton" if key == "u/tensors" else "llamacpp" for key in AUDIENCES}
        turned(models=groups)
        for key in OF:
            url = f"{gateway.settings.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
                found = [one async for one in client.models.list()]
                listed[key] = [(one.id, one.owned_by) for one in found]
                for one in found:
                    assert (await client.models.retrieve(one.id)).id == one.id
                with pytest.raises(openai.NotFoundError):
                    await client.models.retrieve("u/none")
    assert listed == {
        "key-t": [("chat", "t"), ("big", "u"), ("gpt-4", "u"), ("u/chat", "u")],
        "key-w": [("s/big", "s"), ("u/big", "u"), ("gpt-4", "u"), ("chat", "u")],
        "key-u": [
            *(("big", "u"), ("gpt-4", "u"), ("chat", "u"), ("secret", "u")),
            ("org/Secret-7B", "u"),
        ],
        "key-v": [("chat", "u")],
        "key-t-chat": [("chat", "t")],
        "key-t-big": [("big", "u"), ("gpt-4", "u")],
    }


async def test_models_that_a_limit_refuses_are_not_listed(gateway: Harness):
    key_of_w = sha256(b"key-w").hexdigest()[:12]
    limits = (
        SubjectLimits(tenant="t", limits=RequestLimits(models=("t/chat", "u/big"))),
        SubjectLimits(tenant="u", person="anna", limits=RequestLimits(models=("u/chat",))),
        SubjectLimits(tenant="w", key_id=key_of_w, limits=RequestLimits(models=("s/big",))),
    )
    await gateway.set_keys(KEYS, models=MODELS, limits=limits)
    listed = {}
    async with statistics_up(gateway, models=MODELS, limits=limits) as turned:
        turned(models={key: "llamacpp" for key in AUDIENCES if key != "u/tensors"})
        for key, address in (("key-t", ""), ("key-u", ""), ("key-u", "/u"), ("key-w", "")):
            url = f"{gateway.settings.url}{address}/v1"
            # Nobody says for whom he asks.
            said = {"x-slicewise-payer": "v", "x-slicewise-person": "-", "x-slicewise-key": "-"}
            async with openai.AsyncOpenAI(
                base_url=url, api_key=key, default_headers=said
            ) as client:
                listed[key, address] = [model.id async for model in client.models.list()]
    assert listed == {
        ("key-t", ""): ["chat", "big", "gpt-4"],
        ("key-u", ""): ["chat"],
        ("key-u", "/u"): ["chat"],
        ("key-w", ""): ["s/big"],
    }


async def test_a_model_behind_a_long_prompt_leads_where_the_key_may_go(
    gateway: Harness, replicas: tuple[Replica, Replica]
):
    async def led(key: str, model: str) -> tuple[int, str]:
        body = json.dumps({"messages": [{"content": "x" * 20_000}], "model": model}).encode()
        url, headers = f"{gateway.settings.url}{CHAT}?a=1", {"authorization": f"Bearer {key}"}
        async with gateway.session.post(
            url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            said = await answer.json(content_type=None)
            return answer.status, answer.headers.get("location", said["error"]["code"])

    assert await led("key-t", "gpt-4") == (307, f"/u/big{CHAT}?a=1")
    assert await led("key-t", "chat") == (307, f"/t/chat{CHAT}?a=1")
    # What could be one of its own: whether it is, the address there says.
    assert await led("key-v", "big") == (307, f"/v/big{CHAT}?a=1")
    assert await led("key-t", "u/secret") == UNKNOWN
    assert await led("key-t-chat", "big") == OTHER_SERVICE
    async with openai.AsyncOpenAI(base_url=f"{gateway.settings.url}/v1", api_key="key-t") as client:
        long: Any = [{"role": "user", "content": "x" * 20_000}]
        for model in ("big", "gpt-4", "u/big"):
            await client.chat.completions.create(messages=long, model=model)
            assert reached(replicas[0]) == "u/big"
            assert json.loads(replicas[0].bodies[-1]) == {"messages": long, "model": "big"}


async def test_refusals_of_anthropic_s_api_have_its_form(gateway: Harness):
    async def refused(key: str, body: object, before: str = "") -> tuple[int, dict[str, Any]]:
        url = f"{gateway.settings.url}{before}/v1/messages"
        headers = {"x-api-key": key}
        async with gateway.session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    for key, body, before, status, kind, code in (
        ("none", {}, "", 401, "authentication_error", "SW-GATEWAY-KEY"),
        ("key-t", {"model": "none"}, "", 404, "not_found_error", "SW-GATEWAY-UNKNOWN"),
        ("key-t", {}, "", 400, "invalid_request_error", "SW-GATEWAY-MODEL"),
        ("key-t", {}, "/u/secret", 403, "permission_error", "SW-GATEWAY-KEY-TENANT"),
    ):
        found, said = await refused(key, body, before)
        error = said["error"]
        assert (found, said["type"], error["type"]) == (status, "error", kind)
        assert error["message"].startswith(f"{code}: ")


async def test_who_leaves_the_audience_is_let_in_no_more(gateway: Harness):
    assert (await asked(gateway, "key-t", {"model": "big"}))[0] == 200
    await gateway.set_keys(KEYS)
    assert await asked(gateway, "key-t", {"model": "big"}) == UNKNOWN
    assert (await asked(gateway, "key-t", {"model": "u/big"}))[0] == 404
    assert (await asked(gateway, "key-t", {}, f"/u/big{CHAT}"))[0] == 403
    assert (await asked(gateway, "key-t", {"model": "chat"}))[0] == 200
    maps = gateway.settings.directory / "models.map"
    assert (maps.read_text(), maps.stat().st_mode & 0o777) == ("", 0o640)


async def test_a_revoked_key_s_stream_from_a_shared_service_ends(gateway: Harness):
    url = f"{gateway.settings.url}{CHAT}"
    body = {"model": "u/big", "stream": True}
    headers = {"authorization": "Bearer key-t"}
    async with gateway.session.post(url, json=body, headers=headers) as answer:
        await answer.content.readline()
        left = {key: of for key, of in KEYS.items() if of != "t"}
        await gateway.set_keys(left, models=MODELS)
        with suppress(aiohttp.ClientError):
            await asyncio.wait_for(answer.content.read(), PATIENCE_S)


async def test_requests_count_against_the_tenant_that_asks(
    tmp_path: Path, replicas: tuple[Replica, Replica]
):
    limits = {"requests_per_s": 0, "concurrent": 0, "tenants": {"t": {"concurrent": 1}}}
    places = {"services": 8, "backends": 6, "services_per_tenant": 8}
    async with gateway_up(tmp_path, limits=limits, **places) as gateway:
        await serve(gateway, *replicas)
        replicas[0].pause()
        first = asyncio.create_task(asked(gateway, "key-t", {"model": "big"}))

        async def has_come() -> bool:
            return bool(replicas[0].bodies)

        await eventually(has_come)
        refused = await asked(gateway, "key-t", {}, f"/u/tensors{INFER}")
        assert refused == (429, "SW-GATEWAY-CONCURRENT")
        assert (await asked(gateway, "key-w", {}, f"/u/tensors{INFER}"))[0] == 200
        replicas[0].go_on()
        assert (await first)[0] == 200


async def test_a_limit_of_models_holds_by_each_name_that_a_model_has(gateway: Harness):
    """Envoy's QuotaPolicy: a quota that is silently not applied, as two names differ."""
    limits = tuple(
        SubjectLimits(tenant=tenant, limits=RequestLimits(models=(only,)))
        for tenant, only in (("t", "t/chat"), ("u", "u/chat"))
    )
    await gateway.set_keys(KEYS, models=MODELS, limits=limits)
    wanted = {
        **{("key-t", model): 403 for model in ("big", "u/big", "gpt-4", "u/chat")},
        **{("key-t", model): 200 for model in ("chat", "t/chat")},
        **{("key-u", model): 403 for model in ("secret", "org/Secret-7B")},
        ("key-u", "chat"): 200,
    }
    assert wanted == {
        (key, model): (await asked(gateway, key, {"model": model, "messages": []}))[0]
        for key, model in wanted
    }
