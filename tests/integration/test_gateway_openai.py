"""One address of OpenAI's API for a tenant: what a real HAProxy reads of a body, and its errors."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway_harness import (
    CHAT,
    INFER,
    MESSAGES,
    OF_THE_ANSWER,
    OF_THE_HOST,
    Harness,
    Replica,
    eventually,
    gateway_up,
    of_the_host,
    statistics_up,
)
from yarl import URL

from slicewise.launcher.rules.gateway.routing import Route, SetTerms
from slicewise.launcher.rules.gateway.types import Load, ServerMode, Terms

pytestmark = pytest.mark.integration

KEY, OTHER, ONE = "swk_0123_secret", "swk_4567_secret", "swk_89ab_secret"
KEYS = {
    sha256(key.encode()).hexdigest(): of for key, of in ((KEY, "t"), (OTHER, "u"), (ONE, "t/chat"))
}
GROUP = "llamacpp"
UNSEEN = "SW-GATEWAY-MODEL-UNSEEN"
ASKED = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


async def serve(gateway: Harness, *replicas: Replica, **more: object) -> None:
    """t/chat by these, t/none by none, t/tensors by Triton's, u/secret of another tenant."""
    targets = {one.endpoint: ServerMode.READY for one in replicas}
    await gateway.route(
        Route("t/chat", 4, targets, GROUP, **more),
        Route("t/none", 4, {}, GROUP),
        Route("t/tensors", 4, {}, "triton"),
        Route("u/secret", 4, targets, GROUP),
    )


@pytest.fixture
async def gateway(tmp_path: Path) -> Any:
    async with gateway_up(tmp_path, services=4, backends=2, services_per_tenant=4) as harness:
        yield harness


async def posted(
    gateway: Harness, body: bytes, path: str = f"/t{CHAT}", **headers: str
) -> tuple[int, dict[str, Any]]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = URL(f"{gateway.settings.url}{path}", encoded=True)
    async with gateway.session.post(url, data=body, headers=sent) as answer:
        return answer.status, await answer.json(content_type=None)


def coded(answer: Mapping[str, Any]) -> str:
    """The code of an error in OpenAI's form, which has all of its parts."""
    error = answer["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].startswith(f"{error['code']}: ")
    return str(error["code"])


@pytest.mark.parametrize("path", [f"/t{CHAT}", f"/t/chat{CHAT}"])
async def test_cookies_and_words_about_the_host_pass_in_neither_direction(
    gateway: Harness, replicas: tuple[Replica, Replica], path: str
):
    await serve(gateway, replicas[0])
    replicas[0].says = (*OF_THE_HOST, *OF_THE_ANSWER.items())
    url = f"{gateway.settings.url}{path}"
    for stream in (False, True):
        body = json.dumps({**ASKED, "stream": stream}).encode()
        async with gateway.session.post(url, data=body, headers={"Cookie": "a=b"}) as answer:
            assert (answer.status, of_the_host(answer.headers)) == (200, set())
            assert OF_THE_ANSWER.items() <= answer.headers.items()
            assert "cookie" not in replicas[0].headers


NESTED = b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b', "model": "chat"}'


GOOD: Sequence[str | bytes] = (
    json.dumps(ASKED).encode(),
    b' \n{ "model" : "chat" }',
    json.dumps({"messages": [{"content": 'say "model": "none", {"model": "u/secret"}'}], **ASKED}),
    json.dumps({"tools": [{"model": "none"}, {"a": {"model": "none"}}], **ASKED}),
    '{"prompt": "\\\\", "model": "chat"}',
    '{"prompt": "\\\\\\"", "model": "chat", "n": [{}, []]}',
    '{"model\\u0020": "none", "model": "chat"}',
    b'{"x": "\xff\xfe\x01", "model": "chat"}',
    NESTED,
    b'{"model": "chat", "prompt": "' + b"x" * 200_000 + b'"}',
)


async def test_the_model_in_the_body_names_the_service(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    for body in GOOD:
        sent = body.encode() if isinstance(body, str) else body
        status, answer = await posted(gateway, sent)
        assert (status, answer.get("by")) == (200, replicas[0].port), body[:100]
        assert replicas[0].bodies[-1] == sent
        assert replicas[0].headers["x-slicewise-service"] == "t/chat"


LONG = json.dumps({"messages": [{"content": "x" * 20_000}], "model": "chat"}).encode()


BAD = (
    (b"", (400, "SW-GATEWAY-MODEL")),
    (b"model=chat", (400, "SW-GATEWAY-MODEL")),
    (b'["model", "chat"]', (400, "SW-GATEWAY-MODEL")),
    (b'"model": "chat"', (400, "SW-GATEWAY-MODEL")),
    (b'{"messages": []}', (400, "SW-GATEWAY-MODEL")),
    # Another encoding: an engine might read it differently.
    (b'{"x": "\x00", "model": "chat"}', (400, "SW-GATEWAY-MODEL")),
    (b'{"a": {"model": "chat"}}', (400, "SW-GATEWAY-MODEL")),
    (b'{"model": 7}', (400, "SW-GATEWAY-MODEL")),
    (b'{"model": null}', (400, "SW-GATEWAY-MODEL")),
    (b'{"model": ["chat"]}', (400, "SW-GATEWAY-MODEL")),
    (b'{"model": "ch\\u0061t"}', (400, "SW-GATEWAY-MODEL")),
    (b'{"model": "chat", "model": "none"}', (400, "SW-GATEWAY-MODEL")),
    (b'{"model": "chat', (400, "SW-GATEWAY-MODEL")),
    (b'{"prompt": "no end \\', (400, "SW-GATEWAY-MODEL")),
    (b"{" * 3000, (400, "SW-GATEWAY-MODEL")),
    (LONG.replace(b'"chat"', b'"nothing"'), (404, "SW-GATEWAY-UNKNOWN")),
    (LONG.replace(b'"chat"', b'"v1"'), (404, "SW-GATEWAY-UNKNOWN")),
    (LONG.replace(b'"chat"', b'"../u/secret"'), (404, "SW-GATEWAY-UNKNOWN")),
    (LONG.replace(b'"chat"', b"7"), (400, "SW-GATEWAY-MODEL")),
    (LONG.replace(b'"model"', b'"other"'), (400, "SW-GATEWAY-MODEL")),
    (LONG.replace(b"xx", b"x\0", 1), (400, "SW-GATEWAY-MODEL")),
    (b'{"a":' + b"[" * 1_000_000, (400, "SW-GATEWAY-MODEL")),
    (b'{"a":"' + b"\\\\" * 500_000, (400, "SW-GATEWAY-MODEL")),
    (b'{"model": "nothing"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": ""}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "v1"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "tensors"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "t/chat"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "../u/secret"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "u/secret"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "chat\r\nx-evil: 1"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "chat,x"}', (404, "SW-GATEWAY-UNKNOWN")),
    (b'{"model": "chat' + b"x" * 9000 + b'"}', (404, "SW-GATEWAY-UNKNOWN")),
)


async def test_a_body_that_names_no_service_of_the_tenant_reaches_none(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    for body, expected in BAD:
        status, answer = await posted(gateway, body)
        assert (status, coded(answer)) == expected, body[:100]
        assert answer["error"]["param"] == "model"
    assert replicas[0].bodies == []


async def test_a_model_behind_a_long_prompt_leads_to_the_service_s_own_address(
    gateway: Harness, replicas
):
    """As clients write it that send the messages first."""
    await serve(gateway, replicas[0])
    await gateway.set_keys(KEYS)
    for path in (CHAT, "/v1/completions?a=b"):
        status, _, head = await redirected(gateway, LONG, f"/t{path}", x_api_key=ONE)
        assert (status, head["location"]) == (307, f"/t/chat{path}")
    _, answer, _ = await redirected(gateway, LONG, x_api_key=ONE)
    assert coded(answer) == UNSEEN
    assert f"{gateway.settings.url}/TENANT/SERVICE/v1" in answer["error"]["message"]
    assert replicas[0].bodies == []
    async with client_of(gateway, ONE) as client:
        said = json.loads(LONG)
        await client.post("/chat/completions", body=said, cast_to=object)
        assert [json.loads(one) for one in replicas[0].bodies] == [said]
        # The key is checked for what the body has named.
        with pytest.raises(openai.PermissionDeniedError, match="SW-GATEWAY-KEY-SERVICE"):
            await client.post("/chat/completions", body={**said, "model": "none"}, cast_to=object)


async def redirected(
    gateway: Harness, body: bytes, path: str = f"/t{CHAT}", **headers: str
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """What a client is told that does not follow."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{gateway.settings.url}{path}"
    async with gateway.session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
        return answer.status, await answer.json(), answer.headers


async def test_a_body_that_is_looked_through_is_bounded(tmp_path: Path, replicas):
    """By the length that it says, and by what comes of one that says none."""
    async with gateway_up(tmp_path, max_json_mib=1, services=4, backends=2) as gateway:
        await serve(gateway, replicas[0])
        long = LONG.replace(b"xx", b"x" * 1_100_000, 1)
        status, answer = await posted(gateway, long)
        assert (status, coded(answer)) == (413, "SW-GATEWAY-JSON")
        status, answer = await written(gateway, b"transfer-encoding: chunked", chunked(long))
        assert (status, coded(answer)) == (413, "SW-GATEWAY-JSON")


async def test_a_larger_buffer_sees_models_further_behind(tmp_path: Path, replicas):
    async with gateway_up(tmp_path, buffer_kib=64, services=4, backends=2) as gateway:
        await serve(gateway, replicas[0])
        for count, expected in ((20_000, 200), (80_000, 307)):
            body = LONG.replace(b"x" * 20_000, b"x" * count)
            assert (await redirected(gateway, body))[0] == expected


async def test_a_compressed_body_is_refused_and_one_in_chunks_is_read(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    status, answer = await posted(gateway, json.dumps(ASKED).encode(), content_encoding="gzip")
    assert (status, coded(answer)) == (400, "SW-GATEWAY-MODEL")

    for body, expected in ((json.dumps(ASKED).encode(), (200, "")), (LONG, (307, UNSEEN))):
        status, answer = await written(gateway, b"transfer-encoding: chunked", chunked(body))
        assert (status, coded(answer) if status != 200 else "") == expected


def chunked(body: bytes) -> bytes:
    chunks = (
        b"%x\r\n%b\r\n" % (len(piece), piece)
        for piece in (body[at : at + 999] for at in range(0, len(body), 999))
    )
    return b"".join(chunks) + b"0\r\n\r\n"


async def written(gateway: Harness, length: bytes, body: bytes) -> tuple[int, dict[str, Any]]:
    """As a client does that writes all, then reads."""
    host, _, port = gateway.settings.bind.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /t{CHAT} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n".encode()
    writer.write(head + length + b"\r\n\r\n" + body)
    said = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return int(said.split()[1]), json.loads(said.partition(b"\r\n\r\n")[2])


async def test_a_key_opens_what_it_says_and_nothing_is_read_for_who_has_none(
    gateway: Harness, replicas
):
    await serve(gateway, replicas[0])
    await gateway.set_keys(KEYS)
    named, other = json.dumps(ASKED).encode(), b'{"model": "none"}'
    found = [
        (await posted(gateway, body, x_api_key=key))
        for body, key in (
            (named, "nonsense"),
            (named, OTHER),
            (other, ONE),
            (b'{"model": "nothing"}', ONE),
            (b'{"model": "u/secret"}', ONE),
            (b'{"model": "chat", "model": "none"}', ONE),
        )
    ]
    assert [(status, coded(answer)) for status, answer in found] == [
        (401, "SW-GATEWAY-KEY"),
        (403, "SW-GATEWAY-KEY-TENANT"),
        (403, "SW-GATEWAY-KEY-SERVICE"),
        # Which services there are it does not learn.
        (403, "SW-GATEWAY-KEY-SERVICE"),
        (403, "SW-GATEWAY-KEY-SERVICE"),
        (400, "SW-GATEWAY-MODEL"),
    ]
    for key in (KEY, ONE):
        assert (await posted(gateway, named, authorization=f"Bearer {key}"))[0] == 200
    assert (await posted(gateway, b'{"model": "secret"}', "/u/v1/completions", x_api_key=ONE))[
        0
    ] == 403


async def test_a_body_that_does_not_come_costs_only_its_sender(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    waits = asyncio.create_task(written(gateway, b"content-length: 500", b"{"))
    assert (await posted(gateway, json.dumps(ASKED).encode()))[0] == 200
    status, answer = await waits
    assert (status, coded(answer)) == (408, "SW-GATEWAY-REQUEST")


async def test_only_what_is_openai_s_is_served_there_and_others_get_other_errors(
    gateway: Harness, replicas
):
    await serve(gateway, replicas[0])
    for path in ("/t/v1/slots", "/t/v1/v1/chat/completions", "/t/v1/internal", "/t/v1"):
        status, answer = await posted(gateway, json.dumps(ASKED).encode(), path)
        assert (status, coded(answer)) == (403, "SW-GATEWAY-DENIED"), path
    async with gateway.session.get(f"{gateway.settings.url}/t{CHAT}") as answer:
        assert coded(await answer.json()) == "SW-GATEWAY-DENIED"
    _, answer = await posted(gateway, b"{}", f"/t/nothing{INFER}")
    assert str(answer["error"]).startswith("SW-GATEWAY-UNKNOWN: ")
    _, answer = await posted(gateway, b"{}", f"/t/nothing{CHAT}")
    assert coded(answer) == "SW-GATEWAY-UNKNOWN"


async def test_a_path_that_is_not_served_is_refused_before_its_body_has_come(
    gateway: Harness, replicas
):
    await serve(gateway, replicas[0])
    form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nchat\r\n--b--\r\n'
    for body in (form, b"", json.dumps(ASKED).encode()):
        for path in ("/t/v1/audio/transcriptions", "/t/v1/tokenize", "/t/chat/v1/audio/speech"):
            status, answer = await posted(gateway, body, path)
            assert (status, coded(answer)) == (403, "SW-GATEWAY-DENIED"), (body, path)
            assert answer["error"]["message"].count("completions, chat") == 1
    host, _, port = gateway.settings.bind.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /t/v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\ncontent-length: 900\r\n\r\n{"
    writer.write(head)
    assert b" 403 " in await asyncio.wait_for(reader.readline(), 8)
    writer.close()
    assert replicas[0].served == 0


async def test_a_slash_too_many_leads_to_the_same_place(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    sent = json.dumps(ASKED).encode()
    for path in (
        *("/t/v1//chat/completions", "/t/v1/chat/completions/", "//t//v1/chat//completions//"),
        *("/t/chat/v1//chat/completions", "/t/chat/v1/chat/completions/"),
    ):
        status, answer = await posted(gateway, sent, f"{path}?a=//b/")
        assert (status, answer.get("by")) == (200, replicas[0].port), path
        assert replicas[0].paths[-1] == "/v1/chat/completions?a=//b/"
    assert (await posted(gateway, LONG, "/t/v1//chat/completions/"))[0] == 200
    assert replicas[0].paths[-1] == "/v1/chat/completions"
    # It opens no way round what is refused.
    for path in ("/t/chat//metrics", "/t/chat/v1//load_lora_adapter/", "/t/chat//v1/../metrics"):
        assert (await posted(gateway, sent, path))[0] == 403
    status, answer = await posted(gateway, sent, "//u//secret/v1//chat/completions")
    assert status == 200


async def test_an_unknown_model_is_named_as_it_was_sent(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    for model in ("openai/chat", "Qwen/Qwen3-8B", "\u00fcber chat", "chat'x"):
        for long in ("", "x" * 20_000):
            asked = {"messages": [{"content": long}], "model": model}
            sent = json.dumps(asked, ensure_ascii=False).encode()
            status, answer = await posted(gateway, sent)
            assert (status, coded(answer)) == (404, "SW-GATEWAY-UNKNOWN")
            assert f"'t/{model}'" in answer["error"]["message"]


async def test_of_two_keys_of_services_the_model_says_which_is_right(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    none = "swk_cdef_secret"
    await gateway.set_keys({**KEYS, sha256(none.encode()).hexdigest(): "t/none"})
    sent = json.dumps(ASKED).encode()
    for first, second in ((none, ONE), (ONE, none), ("dummy", ONE), (OTHER, ONE)):
        headers = {"x_api_key": first, "Authorization": f"Bearer {second}"}
        assert (await posted(gateway, sent, **headers))[0] == 200
    wrong = {"x_api_key": none, "Authorization": f"Bearer {OTHER}"}
    status, answer = await posted(gateway, sent, **wrong)
    assert (status, coded(answer)) == (403, "SW-GATEWAY-KEY-SERVICE")


async def test_models_are_those_that_a_key_opens_also_while_they_sleep(gateway: Harness, replicas):
    models = {"t/chat": GROUP, "t/none": GROUP, "t/tensors": "triton", "u/secret": GROUP}
    await gateway.set_keys(KEYS)
    listed: dict[str, list[str]] = {}
    async with statistics_up(gateway) as turned:
        turned(models=models)
        for key in (KEY, ONE, OTHER):
            url = f"{gateway.settings.url}/{'u' if key == OTHER else 't'}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
                found = [one async for one in client.models.list()]
                assert {(one.object, one.created) for one in found} == {("model", 7)}
                listed[key] = [f"{one.owned_by}/{one.id}" for one in found]
                assert (await client.models.retrieve(found[0].id)).id == found[0].id
                with pytest.raises(openai.NotFoundError, match="SW-GATEWAY-UNKNOWN"):
                    await client.models.retrieve("tensors")
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.settings.url}/t/v1", api_key=OTHER
        ) as client:
            with pytest.raises(openai.PermissionDeniedError):
                await client.models.list()
    assert listed == {
        KEY: ["t/chat", "t/none"],
        ONE: ["t/chat"],
        OTHER: ["u/secret"],
    }
    async with client_of(gateway) as client:
        with pytest.raises(openai.InternalServerError, match="SW-GATEWAY-STATISTICS"):
            await client.models.list()


ADAPTERS = frozenset({"legal", "tax"})


async def counts(gateway: Harness, wanted: Mapping[str, int]) -> None:
    """Wait until HAProxy has written down that many requests of each adapter."""

    async def is_counted() -> bool:
        return (await gateway.runtime.observe()).adapters == wanted

    await eventually(is_counted)


async def test_an_adapter_is_a_model_of_the_service_before_its_colon(gateway: Harness, replicas):
    replicas[0].work_s = 0.0
    await serve(gateway, replicas[0], adapters=ADAPTERS)
    await gateway.set_keys(KEYS)
    for key in (KEY, ONE):
        body = b'{"model": "chat:legal"}'
        status, answer = await posted(gateway, body, x_api_key=key)
        assert (status, answer["by"]) == (200, replicas[0].port)
        assert replicas[0].bodies[-1] == body
        assert replicas[0].headers["x-slicewise-service"] == "t/chat"
    for name, key, expected in (
        ("chat:none", KEY, (404, "SW-GATEWAY-UNKNOWN")),
        ("chat:", KEY, (404, "SW-GATEWAY-UNKNOWN")),
        ("chat:legal:x", KEY, (404, "SW-GATEWAY-UNKNOWN")),
        ("none:legal", KEY, (404, "SW-GATEWAY-UNKNOWN")),
        ("legal", KEY, (404, "SW-GATEWAY-UNKNOWN")),
        (":legal", KEY, (404, "SW-GATEWAY-UNKNOWN")),
        ("none:legal", ONE, (403, "SW-GATEWAY-KEY-SERVICE")),
        ("u/secret:legal", KEY, (404, "SW-GATEWAY-UNKNOWN")),
    ):
        said = json.dumps({"model": name}).encode()
        status, answer = await posted(gateway, said, x_api_key=key)
        assert (status, coded(answer)) == expected, name
    _, answer = await posted(gateway, b'{"model": "chat:none"}', x_api_key=KEY)
    assert "'t/chat:none'" in answer["error"]["message"]
    assert len(replicas[0].bodies) == 2
    await counts(gateway, {"t/chat:legal": 2, "t/chat:tax": 0})


async def test_each_request_of_an_adapter_is_counted_once_also_at_its_service_s_address(
    gateway: Harness, replicas
):
    replicas[0].work_s = 0.0
    await serve(gateway, replicas[0], adapters=ADAPTERS)
    one_address = [posted(gateway, b'{"model": "chat:legal"}') for _ in range(60)]
    direct = [
        posted(gateway, f'{{"model": "{name}"}}'.encode(), f"/t/chat{CHAT}")
        for name in ("chat:tax", "chat:tax", "chat:none", "chat", "tax", "none:tax")
    ]
    found = await asyncio.gather(*one_address, *direct)
    assert {status for status, _ in found} == {200}
    await counts(gateway, {"t/chat:legal": 60, "t/chat:tax": 2})
    await serve(gateway, replicas[0], adapters=frozenset({"tax"}))
    await counts(gateway, {"t/chat:tax": 2})
    assert (await posted(gateway, b'{"model": "chat:legal"}'))[0] == 404


@pytest.mark.promise("LoRA adapters are models of their service.")
async def test_an_adapter_of_a_service_that_sleeps_wakes_it(gateway: Harness, replicas):
    await gateway.route(Route("t/chat", 4, {}, GROUP, adapters=ADAPTERS))
    asked = asyncio.create_task(posted(gateway, b'{"model": "chat:tax"}'))

    async def is_held() -> bool:
        backend = (await gateway.runtime.observe()).backend_of("t/chat")
        return backend is not None and backend.sessions == 1

    await eventually(is_held)
    await serve(gateway, replicas[0], adapters=ADAPTERS)
    assert (await asked)[0] == 200


async def test_no_client_loads_or_unloads_an_adapter(gateway: Harness, replicas):
    await serve(gateway, replicas[0], adapters=ADAPTERS)
    for path in (
        "/t/v1/load_lora_adapter",
        "/t/v1/unload_lora_adapter",
        "/t/chat/v1/load_lora_adapter",
        "/t/chat/v1/unload_lora_adapter",
        "/t/chat/load_lora_adapter",
        "/t/chat/unload_lora_adapter",
        "/t/chat/load_lora_adapter_from_tensors",
        "/t/chat/adapters",
        "/t/chat/adapters/chat:legal",
        "/t/chat/v1/load_lora_adapter/",
        "/t/chat//v1/load_lora_adapter",
        "/t/chat/v1/%6coad_lora_adapter",
        "/t/chat/v1/completions/../load_lora_adapter",
        "/t/chat/v1/chat/completions%2f..%2f..%2fload_lora_adapter",
    ):
        url = URL(f"{gateway.settings.url}{path}", encoded=True)
        said = {"model": "chat", "lora_name": "chat:legal", "lora_path": "/etc"}
        async with gateway.session.post(url, json=said) as answer:
            assert answer.status == 403, path
            assert "SW-GATEWAY-DENIED" in await answer.text()
    assert replicas[0].headers == {}


async def test_adapters_are_listed_with_their_service_as_parent(gateway: Harness, replicas):
    await gateway.set_keys(KEYS)
    async with statistics_up(gateway) as turned, client_of(gateway) as client:
        turned(models={"t/chat": GROUP}, adapters=ADAPTERS)
        found = {one.id: one.to_dict().get("parent") async for one in client.models.list()}
        assert found == {"chat": None, "chat:legal": "chat", "chat:tax": "chat"}
        assert (await client.models.retrieve("chat:legal")).id == "chat:legal"


async def test_made_up_tenants_have_the_questions_of_one_host(gateway: Harness):
    """Each had a share of its own of the launcher, and an entry of the table."""
    for tenant in ("a", "b", "c"):
        async with gateway.session.get(f"{gateway.settings.url}/{tenant}/v1/models") as answer:
            assert answer.status == 503
    reader, writer = await asyncio.open_unix_connection(gateway.settings.runtime_socket)
    writer.write(b"show table questions\n")
    _, *entries = (await reader.read()).decode().split("\n")
    writer.close()
    assert [one.split()[1] for one in entries if one] == ["key=/127.0.0.1"]


async def test_made_up_tenants_share_the_limits_of_their_host(gateway: Harness, replicas):
    """Each had an entry, so that twenty thousand of them ended the count of all others."""
    await serve(gateway, replicas[0])
    for tenant in ("a", "b", "t"):
        await posted(gateway, json.dumps(ASKED).encode(), f"/{tenant}{CHAT}")
        await posted(gateway, b"{}", f"/{tenant}/made-up{CHAT}")
    reader, writer = await asyncio.open_unix_connection(gateway.settings.runtime_socket)
    writer.write(b"show table tenants\n")
    _, *entries = (await reader.read()).decode().split("\n")
    writer.close()
    assert {one.split()[1] for one in entries if one} == {"key=/127.0.0.1", "key=t"}


def client_of(gateway: Harness, key: str = KEY, **more: Any) -> openai.AsyncOpenAI:
    url = f"{gateway.settings.url}/t/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=key, **{"max_retries": 0, **more})


async def test_a_service_that_sleeps_is_woken_and_one_that_fails_says_why(
    gateway: Harness, replicas
):
    await serve(gateway, replicas[0])
    async with client_of(gateway) as client:
        call = client.chat.completions.create(model="none", messages=[])
        asked = asyncio.create_task(call)

        async def is_held() -> bool:
            backend = (await gateway.runtime.observe()).backend_of("t/none")
            return backend is not None and backend.sessions == 1

        await eventually(is_held)
        await gateway.runtime.apply([SetTerms("t/none", Terms(failing='no "file"'), Terms())])
        with pytest.raises(openai.InternalServerError) as caught:
            await asked
        assert caught.value.status_code == 503
        assert caught.value.code == "SW-GATEWAY-FAILING"
        assert caught.value.response.headers["retry-after"].isdecimal()
        assert 'no "file"' in caught.value.message


async def test_a_client_beyond_the_limits_is_told_and_tries_again_by_itself(
    tmp_path: Path, replicas
):
    limits = {"tenants": {"t": {"requests_per_s": 1}}}
    async with gateway_up(tmp_path, limits=limits, services=4, backends=2) as gateway:
        await serve(gateway, replicas[0])
        async with client_of(gateway) as client:
            asked = [client.chat.completions.create(model="chat", messages=[]) for _ in range(5)]
            refused = [
                one
                for one in await asyncio.gather(*asked, return_exceptions=True)
                if isinstance(one, openai.RateLimitError)
            ]
            assert refused
            assert refused[0].code == "SW-GATEWAY-RATE"
            assert refused[0].type == "rate_limit_error"
            assert refused[0].response.headers["retry-after"] == "1"
            patient = client.with_options(max_retries=10)
            answer = await patient.chat.completions.create(model="chat", messages=[])
            assert answer.model == "m"


async def test_what_haproxy_itself_answers_has_openai_s_form(tmp_path: Path, replicas):
    async with gateway_up(tmp_path, hold_s=1, services=4, backends=2) as gateway:
        await serve(gateway, replicas[0], terms=Terms(deadline_ms=300))
        replicas[0].pause()
        status, answer = await posted(gateway, json.dumps(ASKED).encode())
        assert (status, coded(answer)) == (504, "SW-GATEWAY-SLOW")
        assert answer["error"]["type"] == "server_error"
        for path in (f"/t/chat{MESSAGES}", f"/t{MESSAGES}"):
            status, answer = await posted(gateway, json.dumps(ASKED).encode(), path)
            message = answer["error"].pop("message")
            assert (status, message.partition(":")[0]) == (504, "SW-GATEWAY-SLOW")
            assert answer == {"type": "error", "error": {"type": "api_error"}}
        status, answer = await posted(gateway, b'{"model": "none"}')
        assert (status, coded(answer)) == (503, "SW-GATEWAY-WAKING")
        status, answer = await posted(gateway, b"{}", f"/t/tensors{INFER}")
        assert isinstance(answer["error"], str)


async def test_answers_in_one_piece_are_timed_and_streams_end_with_their_key(
    gateway: Harness, replicas
):
    await serve(gateway, replicas[0])
    await gateway.set_keys(KEYS)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(gateway))
        await client.chat.completions.create(model="chat", messages=[])
        direct = client.with_options(base_url=f"{gateway.settings.url}/t/chat/v1")
        await direct.chat.completions.create(model="any", messages=[])
        await direct.chat.completions.create(model="any", messages=[], stream=False)
        # Not all of it is seen, so that it might be one.
        long = [{"role": "user", "content": "x" * 20_000}]
        await direct.chat.completions.create(model="any", messages=long)
        streams = [
            await one.chat.completions.create(model="chat", messages=[], stream=True)
            for one in (client, direct)
        ]
        for stream in streams:
            await anext(aiter(stream))

        async def are_timed() -> bool:
            """HAProxy counts an answer a moment after its client has it."""
            timings = (await gateway.runtime.timings())["t/chat"]
            return (timings.came, timings.answered) == (3, 3)

        await eventually(are_timed)
        await gateway.set_keys({})
        await gateway.set_keys({}, protected=["t"])
        for stream in streams:
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass


HIDDEN = (
    b'{"model": "chat", "stream": true}',
    b'{"model": "chat", "stream": 1, "x": "\\"stream\\": true"}',
    b'{"model": "chat", "stream": false, "stream": true}',
    b'{"model": "chat", "str\\u0065am": true}',
    b'{"model": "chat", "stream": true, "stream": false}',
)


async def test_a_stream_that_hides_counts_as_one(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    for body in HIDDEN:
        async with gateway.session.post(f"{gateway.settings.url}/t{CHAT}", data=body) as answer:
            assert answer.status == 200
            assert "t/chat" not in await gateway.runtime.timings(), body


async def test_a_client_that_leaves_its_stream_frees_its_place(gateway: Harness, replicas):
    await gateway.route(Route("t/chat", 1, {replicas[0].endpoint: ServerMode.READY}, GROUP))

    async def waits(load: Load) -> bool:
        backend = (await gateway.runtime.observe()).backend_of("t/chat")
        assert backend is not None
        return backend.sessions == load.total

    async with client_of(gateway) as client:
        stream = await client.chat.completions.create(model="chat", messages=[], stream=True)
        await anext(aiter(stream))
        assert await waits(Load(in_flight=1))
        await stream.close()
        await eventually(lambda: waits(Load()))
        await client.chat.completions.create(model="chat", messages=[])


async def test_a_gateway_that_knows_no_such_address_is_not_asked_for_it(gateway: Harness):
    """By the host's name, and by gRPC's metadata, v1 is no name of a service."""
    headers = {"content-type": "application/grpc", "slicewise-service": "t/v1"}
    async with gateway.session.post(
        f"{gateway.settings.url}/t/v1/models", headers=headers
    ) as answer:
        assert answer.status == 200
        assert answer.headers["grpc-status"] == "5"


async def by(gateway: Harness, session: str, **how: Any) -> int:
    """The port of the replica that answers a request of this session."""
    body = {**ASKED, "prompt_cache_key": session} if not how else ASKED
    _, answer = await posted(gateway, json.dumps(body).encode(), **how)
    return int(answer["by"])


async def works_on(gateway: Harness, requests: int) -> bool:
    """Whether so many requests of the service are at its replicas."""
    backend = (await gateway.runtime.observe()).backend_of("t/chat")
    return backend is not None and backend.sessions == requests


async def test_a_session_stays_at_its_replica_while_that_is_not_overloaded(
    gateway: Harness, replicas
):
    one, two = replicas
    one.work_s = two.work_s = 0.01
    await serve(gateway, one, two)
    places = {
        name: {await by(gateway, name) for _ in range(4)}
        | {await by(gateway, "", x_session_id=name)}
        for name in map(str, range(10))
    }
    assert {len(ports) for ports in places.values()} == {1}
    assert set().union(*places.values()) == {one.port, two.port}
    mine = next(name for name, ports in places.items() if ports == {one.port})
    # With three it would have more than the others, by far: the next ones go where less is to do.
    one.pause()
    held = [asyncio.create_task(by(gateway, mine)) for _ in range(3)]
    await eventually(partial(works_on, gateway, 3))
    assert await asyncio.wait_for(by(gateway, mine), 30) == two.port
    # Full, as the other nearly is: the next one goes to that, too.
    other = next(name for name, ports in places.items() if ports == {two.port})
    two.pause()
    busy = [asyncio.create_task(by(gateway, other)) for _ in range(2)]
    await eventually(partial(works_on, gateway, 5))
    held.append(asyncio.create_task(by(gateway, mine)))
    await eventually(partial(works_on, gateway, 6))
    last = asyncio.create_task(by(gateway, mine))
    await eventually(partial(works_on, gateway, 7))
    for replica in replicas:
        replica.go_on()
    assert set(await asyncio.gather(*held)) == {one.port}
    assert set(await asyncio.gather(*busy, last)) == {two.port}
    # It drains: new requests go elsewhere, and none fails.
    modes = {one.endpoint: ServerMode.DRAIN, two.endpoint: ServerMode.READY}
    await gateway.route(Route("t/chat", 4, modes, GROUP))
    assert {await by(gateway, name) for name in places} == {two.port}
    await gateway.route(Route("t/chat", 4, {two.endpoint: ServerMode.READY}, GROUP))
    assert {await by(gateway, name) for name in places} == {two.port}
    await serve(gateway, one, two)
    assert {name: {await by(gateway, name)} for name in places} == places


async def test_a_session_of_odd_bytes_adds_no_line(gateway: Harness, replicas):
    await serve(gateway, replicas[0])
    body = b'{"model": "chat", "prompt_cache_key": "a\r\nx-evil: 1' + b"y" * 500 + b'"}'
    assert (await posted(gateway, body))[0] == 200
    assert replicas[0].headers["x-session-id"].startswith("a??x-evil")
    assert "x-evil" not in replicas[0].headers


async def test_a_body_that_comes_slowly_is_looked_through_to_its_end(gateway: Harness, replicas):
    host, _, port = gateway.settings.bind.partition(":")
    head = f"POST /t{CHAT} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n"
    for said, body in (
        (f"content-length: {len(LONG)}", LONG),
        ("transfer-encoding: chunked", chunked(LONG)),
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}{said}\r\n\r\n".encode())
        for part in (body[:17_000], body[17_000:18_000], body[18_000:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.1)
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert b"\r\nlocation: /t/chat/v1/chat/completions\r\n" in answer


async def test_a_call_of_grpc_to_an_engine_without_any_is_answered_by_the_gateway(
    gateway: Harness, replicas
):
    """Its backends have no halves to which it could be sent."""
    await serve(gateway, replicas[0])
    for path, service, status, state in (
        ("/health", "t/chat", "0", "ready"),
        ("/health", "t/none", "0", "asleep"),
        (CHAT, "t/chat", "7", None),
        ("/inference.GRPCInferenceService/ModelInfer", "t/chat", "7", None),
    ):
        headers = {"content-type": "application/grpc", "slicewise-service": service}
        async with gateway.session.post(
            f"{gateway.settings.url}{path}", data=b"\0\0\0\0\0", headers=headers
        ) as answer:
            said = answer.headers.get("grpc-status", "0")
            assert (answer.status, said) == (200, status), path
            assert answer.headers.get("x-slicewise-state") == state
    assert replicas[0].bodies == []
