"""A secret word goes every way through the gateway, and no file, table or figure has it after."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp
import grpc
import pytest
from quotas import until_in_force
from secret_words import Places
from service_status import services, status, until_routed
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import PATIENCE_S, until, until_done, until_true

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.integration

TENANT, CHAT, BROKEN, ECHO = "nlp", "private", "broken", "echo"
LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")
LLAMA = """\
[service]
name = "{name}"
tenant = "nlp"
engine = "llamacpp"
model_repository = {models}
model = "{name}"
profile = "1g.18gb"
max_replicas = 1
concurrency = 2
keep_alive_s = 600
memory_mib = 512
environment = {{ LLAMA_ARG_CTX_SIZE = "131072" }}
"""
TRITON = """\
[service]
name = "echo"
tenant = "nlp"
model_repository = {models}
model = "echo"
profile = "1g.18gb"
max_replicas = 1
keep_alive_s = 600
memory_mib = 512
"""
ECHO_CONFIG = """\
backend: "python"
input [{ name: "IN" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""
ECHO_MODEL = """\
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            said = pb.get_input_tensor_by_name(request, "IN").as_numpy()
            if said.flat[0].startswith(b"fail"):
                answers.append(pb.InferenceResponse(error=pb.TritonError("not that")))
            else:
                answers.append(pb.InferenceResponse([pb.Tensor("OUT", said[::-1])]))
        return answers
"""


def new_word() -> str:
    """Letters alone: as it is written it stands in paths, headers and host names, too."""
    return uuid4().hex.translate(LETTERS)


class Site:
    """Services of bob's: a chat, one whose replicas never start, and a Triton that echoes."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.url = sandbox.layout.gateway_url
        self.address = urlsplit(self.url).netloc
        self.word, self.answer = new_word(), new_word()
        self.key = ""
        self._home = sandbox.layout.home / sandbox.state.users["bob"].name
        self._uid = sandbox.state.users["bob"].uid

    def publish(self) -> None:
        models = self.sandbox.layout.models / "stored"
        for name in (CHAT, BROKEN):
            (models / name).mkdir(parents=True)
            write_tiny_model(models / name / "tiny.gguf")
        (models / BROKEN / "tiny.gguf").write_text("no model")
        (models / "triton" / ECHO / "1").mkdir(parents=True)
        (models / "triton" / ECHO / "config.pbtxt").write_text(ECHO_CONFIG)
        (models / "triton" / ECHO / "1" / "model.py").write_text(ECHO_MODEL)
        for name, text in ((CHAT, LLAMA), (BROKEN, LLAMA), (ECHO, TRITON)):
            file = self._home / f"{name}.toml"
            folder = models / "triton" if name == ECHO else models
            file.write_text(text.format(name=name, models=json.dumps(str(folder))))
            self.slicewise("service", "apply", str(file))
        for name in (CHAT, BROKEN, ECHO):
            until_routed(self.sandbox, f"{TENANT}/{name}")
        made = self.slicewise("key", "create", TENANT, "--name", "ci", "--yes", "--json")
        self.key = str(json.loads(made)["key"])
        until(self._opens)

    def _opens(self) -> bool:
        """Whether the gateway knows the key; it is told each second."""
        gateway = HTTPConnection(self.address)
        gateway.request("GET", "/v1/models", headers={"Authorization": f"Bearer {self.key}"})
        return gateway.getresponse().status == HTTPStatus.OK

    def slicewise(self, *words: str) -> str:
        return self.sandbox.run("bob", ("slicewise", *words)).stdout

    def leave(self) -> None:
        for name in (CHAT, BROKEN, ECHO):
            words = ("slicewise", "service", "delete", f"{TENANT}/{name}", "--now")
            self.sandbox.run("bob", words, check=False)
        until(lambda: not any(name.startswith(f"{TENANT}/") for name in services(self.sandbox)))
        for key in json.loads(self.slicewise("key", "list", "--json")):
            self.slicewise("key", "delete", key["key_id"], "--yes")
        self.slicewise("key", "open", TENANT, "--yes")

    def replicas(self) -> list[int]:
        """Process ids of llama.cpp's servers."""
        command = ("pgrep", "-u", str(self._uid), "-f", "llama_server[.]py --model")
        return [int(pid) for pid in self.sandbox.run("root", command, check=False).stdout.split()]


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", TENANT, "--nominal", "3"))
    until_in_force(sandbox, TENANT)
    found = Site(sandbox)
    found.publish()
    yield found
    found.leave()


@pytest.fixture
async def session(site: Site) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=2 * PATIENCE_S)
    headers = {"Authorization": f"Bearer {site.key}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as opened:

        async def status_of() -> int:
            async with opened.get(f"{site.url}/{TENANT}/v1/models") as answer:
                return answer.status

        await until_done(status_of, lambda status: status == 200)
        yield opened


async def post(session: aiohttp.ClientSession, url: str, body: Any, **more: Any) -> tuple[int, str]:
    """Status and text; (0, "") of an answer that did not come."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with suppress(aiohttp.ClientError, asyncio.TimeoutError):
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        async with session.post(url, data=data, headers=headers, **more) as answer:
            return answer.status, (await answer.read()).decode(errors="replace")
    return 0, ""


def chat(site: Site, **more: Any) -> dict[str, Any]:
    """One whose answer has a word that does not stand in the question."""
    half = len(site.answer) // 2
    grammar = f'root ::= "{site.answer[:half]}" "{site.answer[half:]}"'
    messages = [{"role": "user", "content": f"say {site.word}"}]
    return {"model": CHAT, "messages": messages, "grammar": grammar, "max_tokens": 64, **more}


async def test_answers_of_openai_s_api(site: Site, session: aiohttp.ClientSession) -> None:
    """Both words go through: asked whole and as a stream, at all three addresses."""
    for path, model in (
        ("v1", f"{TENANT}/{CHAT}"),
        (f"{TENANT}/v1", CHAT),
        (f"{TENANT}/{CHAT}/v1", CHAT),
    ):
        for streams in (False, True):
            url = f"{site.url}/{path}/chat/completions"
            code, text = await post(session, url, chat(site, model=model, stream=streams))
            said = text if not streams else _streamed(text)
            assert (code, site.answer in said) == (200, True), text
        for name, body in {
            "completions": {"prompt": site.word, "max_tokens": 3},
            "responses": {"input": site.word, "max_output_tokens": 3},
            "messages": {"messages": [{"role": "user", "content": site.word}], "max_tokens": 3},
            "messages/count_tokens": {"messages": [{"role": "user", "content": site.word}]},
            "embeddings": {"input": site.word},
            "rerank": {"query": site.word, "documents": [site.word]},
            "tokenize": {"content": site.word},
            "audio/transcriptions": {"file": site.word},
        }.items():
            # The query stands in the first line of the request, which some answers fail.
            url = f"{site.url}/{path}/{name}?prompt={site.word}"
            await post(session, url, {"model": model, "user": site.word, **body})


def _streamed(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    choices = [json.loads(line.removeprefix("data: "))["choices"] for line in lines]
    return "".join(one[0]["delta"].get("content") or "" for one in choices if one)


async def test_kserve_s_protocol_by_http(site: Site, session: aiohttp.ClientSession) -> None:
    model = f"{site.url}/{TENANT}/{ECHO}/v2/models/{ECHO}"
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1]}
    for said in (site.word, f"fail {site.word}"):
        body = {"id": site.word, "inputs": [{**tensor, "data": [said]}]}
        code, text = await post(session, f"{model}/infer", body)
        assert (code, site.word in text) == ((500, False) if "fail" in said else (200, True)), text
        await post(session, f"{model}/generate_stream", {"IN": said})
    binary = len(site.word).to_bytes(4, "little") + site.word.encode()
    header = {**tensor, "parameters": {"binary_data_size": len(binary)}}
    head = json.dumps({"inputs": [header]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    code, _ = await post(session, f"{model}/infer", head + binary, headers=headers)
    assert code == 200
    await post(session, f"{model}/infer", f'{{"inputs": {site.word}'.encode())
    await post(session, f"{model}/infer?prompt={site.word}", {"inputs": [{"name": site.word}]})
    await post(session, f"{model}/versions/{site.word}/infer", {})


async def test_kserve_s_protocol_by_grpc(site: Site) -> None:
    binary = len(site.word).to_bytes(4, "little") + site.word.encode()
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="BYTES", shape=[1])
    base = {"inputs": [tensor], "raw_input_contents": [binary]}
    right_call = (("slicewise-service", f"{TENANT}/{ECHO}"), ("x-api-key", site.key))
    odd = (("slicewise-service", f"{TENANT}/{site.word}"), ("x-api-key", site.key))
    strange = (("slicewise-service", f"{TENANT}/{ECHO}"), ("x-api-key", site.word))
    async with grpc.aio.insecure_channel(site.address) as channel:
        calls = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        right = service_pb2.ModelInferRequest(model_name=ECHO, id=site.word, **base)
        answer = await calls.ModelInfer(right, metadata=right_call, timeout=2 * PATIENCE_S)
        assert site.word.encode() in answer.raw_output_contents[0]
        wrong = service_pb2.ModelInferRequest(model_name=site.word, **base)
        for request, metadata in ((wrong, right_call), (right, odd), (right, strange)):
            with pytest.raises(grpc.aio.AioRpcError):
                await calls.ModelInfer(request, metadata=(*metadata, ("x-note", site.word)))
        stream = calls.ModelStreamInfer(iter([right, wrong]), metadata=right_call)
        with suppress(grpc.aio.AioRpcError):
            assert [answer async for answer in stream]


async def test_tricks_with_the_model(site: Site, session: aiohttp.ClientSession) -> None:
    """A name that is refused is said to who has sent it; a long prompt before it gets 307."""
    url = f"{site.url}/{TENANT}/v1/chat/completions"
    messages = [{"role": "user", "content": site.word + " x" * 20_000}]
    for body in (
        {"model": site.word},
        {"model": f"{CHAT}:{site.word}", "messages": messages},
        {"model": f"{TENANT}/{site.word}"},
        {"model": [site.word]},
        {"model": {site.word: site.word}},
        {"messages": messages, "model": site.word},
        {"messages": messages, "max_tokens": 1, "model": CHAT},
        {"messages": messages},
        f'{{"model": "{CHAT}", "model": "{site.word}"}}'.encode(),
        f'{{"model": "{site.word}'.encode(),
        ("[" * 9_000 + site.word).encode(),
    ):
        assert (await post(session, url, body))[0] > 0
        await post(session, url, body, allow_redirects=False)
    for headers in ({"content-encoding": site.word}, {"content-type": f"text/{site.word}"}):
        await post(session, url, chat(site), headers=headers)
    too_long = f"{site.word}".encode() * (65 * 1024 * 1024 // len(site.word))
    await post(session, url, b'{"messages": "' + too_long)
    await post(session, f"{site.url}/{TENANT}/{CHAT}/v1/chat/completions", too_long)


async def test_refusals(site: Site, session: aiohttp.ClientSession) -> None:
    """The word stands where a client may write what it likes."""
    service, word = f"{site.url}/{TENANT}/{CHAT}/v1", site.word
    for url in (
        f"{service}/{word}",
        f"{service}/models/{word}",
        f"{site.url}/{TENANT}/v1/{word}",
        f"{site.url}/{TENANT}/v1/models/{word}",
        f"{site.url}/v1/models/{word}",
        f"{site.url}/{TENANT}/{word}/v1/chat/completions",
        f"{site.url}/{word}/{CHAT}/v1/chat/completions",
        f"{site.url}/{word}/v1/chat/completions?{word}={word}",
        f"{site.url}/{word}",
        f"{site.url}/?{word}",
    ):
        assert (await post(session, url, chat(site)))[0] >= 400
        async with session.get(url) as answer:
            assert answer.status >= 400
        async with session.request(word.upper(), url) as answer:
            assert answer.status >= 400
    for name, value in {
        "x-api-key": word,
        "authorization": f"Bearer {word}",
        "cookie": f"a={word}",
        "user-agent": word,
        "x-session-id": word,
        "x-sequence-id": word,
        "x-request-id": word,
        "x-conversation-id": word,
        "referer": f"http://{word}/",
        "host": f"{word}.{TENANT}.example.org",
        "x-forwarded-for": word,
        "x-long": word * 300,
        "expect": word,
        word: "1",
    }.items():
        sent = {name: value}
        await post(session, f"{service}/chat/completions", chat(site), headers=sent)
        await post(session, f"{service}/{word}", chat(site), headers=sent)
    bare = aiohttp.ClientSession(timeout=session.timeout)
    async with bare:
        for url in (f"{service}/chat/completions", f"{site.url}/{word}/v1/chat/completions"):
            code, _ = await post(bare, f"{url}?{word}", chat(site), headers={"x-api-key": word})
            assert code in (401, 404)


async def raw(site: Site, said: bytes, *, wait_s: float = 0.3) -> None:
    """Send bytes, and hang up after a while."""
    host, _, port = site.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(said)
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(), wait_s)
    writer.close()


def request(site: Site, path: str, body: bytes, *lines: str) -> bytes:
    head = (
        f"POST {path}?prompt={site.word} HTTP/1.1",
        f"host: {site.address}",
        f"x-api-key: {site.key}",
        *(lines or (f"content-length: {len(body)}",)),
    )
    return "\r\n".join((*head, "", "")).encode() + body


async def test_what_is_no_http_and_who_hangs_up(site: Site) -> None:
    """Within the head, the body, the wait for a replica, a stream."""
    path = f"/{TENANT}/{CHAT}/v1/chat/completions"
    body = json.dumps(chat(site, stream=True)).encode()
    await raw(site, f"{site.word}\r\n\r\n".encode())
    await raw(site, f"GET /{site.word} HTTP/9.9\r\n\r\n".encode())
    await raw(site, request(site, path, body)[:90])
    await raw(site, request(site, path, body[:-5], f"content-length: {len(body)}"))
    await raw(site, request(site, path, body, "content-length: 1", "content-length: 2"))
    chunks = f"{len(body):x}\r\n".encode() + body + f"\r\n{site.word}\r\n".encode()
    await raw(site, request(site, path, chunks, "transfer-encoding: chunked"))
    await raw(site, request(site, path, body, f"x {site.word}: 1", f"content-length: {len(body)}"))
    await raw(site, request(site, path, body), wait_s=1)
    await raw(site, request(site, f"/{TENANT}/{BROKEN}/v1/chat/completions", body), wait_s=1)


async def test_a_service_whose_replicas_do_not_start(
    site: Site, session: aiohttp.ClientSession
) -> None:
    url = f"{site.url}/{TENANT}/{BROKEN}/v1/chat/completions?prompt={site.word}"
    code, text = await post(session, url, chat(site))
    assert (code, "SW-GATEWAY-" in text) == (503, True), text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_replica_that_dies_with_a_request(
    site: Site, session: aiohttp.ClientSession, number: signal.Signals
) -> None:
    """It leaves no core dump, and what its client asked for is in no log."""
    endless = {"messages": chat(site)["messages"], "max_tokens": 100_000, "ignore_eos": True}
    url = f"{site.url}/{TENANT}/{CHAT}/v1/chat/completions?prompt={site.word}"
    # Until it serves.
    await post(session, url, {**endless, "max_tokens": 1})
    asked = [
        asyncio.create_task(post(session, url, {**endless, "stream": streams}))
        for streams in (True, False, False, False)
    ]
    await asyncio.to_thread(
        until, lambda: status(site.sandbox, f"{TENANT}/{CHAT}")["in_flight"] >= 1
    )
    before = site.replicas()
    for pid in before:
        os.kill(pid, number)
    await until_true(lambda: not set(before) & set(site.replicas()))
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_reload_and_a_restart_of_the_gateway(
    site: Site, session: aiohttp.ClientSession
) -> None:
    url = f"{site.url}/{TENANT}/{CHAT}/v1/chat/completions?prompt={site.word}"
    asked = asyncio.create_task(post(session, url, chat(site, stream=True)))
    site.sandbox.kill("haproxy", signal.SIGUSR2)
    assert (await asked)[0] in (200, 0)
    asked = asyncio.create_task(post(session, url, chat(site, stream=True)))
    await asyncio.sleep(0.3)
    for name in ("launcher", "haproxy"):
        site.sandbox.kill(name)
        # Else it might still look alive to who restores it.
        await asyncio.to_thread(site.sandbox.stop, name)
    await asked
    await asyncio.to_thread(site.sandbox.restore, print)
    async with aiohttp.ClientSession(timeout=session.timeout, headers=session.headers) as anew:
        code, text = await post(anew, url, chat(site))
    assert (code, site.answer in text) == (200, True), text


async def test_nothing_of_it_is_stored(site: Site) -> None:
    # HAProxy shows the last message that was no HTTP; no other one, and in no file.
    await raw(site, b"nothing\r\n\r\n")
    places = Places(site.sandbox)
    # That it looks where something is: this stands in files, tables and figures.
    of_the_service = await asyncio.to_thread(places.having, [CHAT])
    assert {"pg_dump slicewise", "show map", "show table"} <= {*of_the_service}
    assert [name for name in of_the_service if name.endswith("/launcher.log")]
    assert await asyncio.to_thread(places.having, [site.word, site.answer, site.key]) == []
