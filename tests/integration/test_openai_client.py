"""OpenAI's own client at a tenant's one address: calls and mistakes, on a real llama.cpp."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from quotas import until_in_force
from service_status import services, status, until_routed
from waiting import until, until_done

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.integration

TENANT = "nlp"
NAME, ASLEEP = "talk", "asleep"
CONCURRENCY = 4
ENDLESS_TOKENS = 30_000
ON = {"ignore_eos": True}
"""For a model of random weights, which could end its answer at any token."""
HELLO = [{"role": "user", "content": "hello"}]
LONG = [{"role": "user", "content": "x" * 17_000}]
FILE = """\
[service]
name = "{name}"
tenant = "nlp"
engine = "llamacpp"
model_repository = {models}
model = "{name}"
profile = "1g.18gb"
max_replicas = 1
concurrency = 4
keep_alive_s = 600
memory_mib = 512

[service.environment]
LLAMA_ARG_CTX_SIZE = "131072"
LLAMA_ARG_EMBEDDINGS = "1"
LLAMA_ARG_POOLING = "{pooling}"
"""


class Site:
    """Two services of bob's, of which one sleeps until the last test and reranks, and keys."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.url = sandbox.layout.gateway_url
        self._models = sandbox.layout.models / "openai"
        self._home = sandbox.layout.home / sandbox.state.users["bob"].name

    def apply(self, name: str) -> None:
        file = self._home / f"{name}.toml"
        file.write_text(
            FILE.format(
                name=name,
                models=json.dumps(str(self._models)),
                pooling="rank" if name == ASLEEP else "mean",
            )
        )
        self.slicewise("bob", "service", "apply", str(file))
        until_routed(self.sandbox, f"{TENANT}/{name}")

    def publish(self) -> None:
        for name in (NAME, ASLEEP):
            (self._models / name).mkdir(parents=True)
            write_tiny_model(self._models / name / "tiny.gguf")

    def slicewise(self, user: str, *words: str) -> str:
        return self.sandbox.run(user, ("slicewise", *words)).stdout

    def key(self, user: str, scope: str) -> str:
        made = self.slicewise(user, "key", "create", scope, "--name", "ci", "--yes", "--json")
        return str(json.loads(made)["key"])

    def client(self, key: str, path: str = f"{TENANT}/v1", **more: Any) -> openai.AsyncOpenAI:
        chosen = {"max_retries": 0, "timeout": 120.0, **more}
        return openai.AsyncOpenAI(base_url=f"{self.url}/{path}", api_key=key, **chosen)

    def leave(self) -> None:
        """Nothing of it, and the tenant open as before."""
        for name in (NAME, ASLEEP):
            words = ("slicewise", "service", "delete", f"{TENANT}/{name}", "--now")
            self.sandbox.run("bob", words, check=False)
        until(
            lambda: not {f"{TENANT}/{NAME}", f"{TENANT}/{ASLEEP}"} & services(self.sandbox).keys()
        )
        for user, tenant in (("bob", TENANT), ("alice", "vision")):
            for key in json.loads(self.slicewise(user, "key", "list", "--json")):
                self.slicewise(user, "key", "delete", key["key_id"], "--yes")
            self.slicewise(user, "key", "open", tenant, "--yes")


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    """All asleep."""
    for tenant in (TENANT, "vision"):
        sandbox.run("root", ("slicewise", "tenant-quota", "set", tenant, "--nominal", "2"))
    until_in_force(sandbox, TENANT)
    found = Site(sandbox)
    found.publish()
    for name in (NAME, ASLEEP):
        found.apply(name)
    yield found
    found.leave()


@pytest.fixture(scope="module")
def keys(site: Site) -> dict[str, str]:
    """Of the tenant, of one service, and of another tenant."""
    return {
        "all": site.key("bob", TENANT),
        "one": site.key("bob", f"{TENANT}/{NAME}"),
        "other": site.key("alice", "vision"),
    }


@pytest.fixture
async def client(site: Site, keys: dict[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    await until_done(lambda: know_keys(site, keys), bool)
    async with site.client(keys["all"]) as opened:
        yield opened


async def know_keys(site: Site, keys: dict[str, str]) -> bool:
    """Whether the gateway does: without any the tenant is open."""
    async with site.client(keys["one"]) as one, site.client(keys["other"]) as other:
        try:
            return await ids(other) == [] and await ids(one) == [NAME]
        except openai.AuthenticationError:
            return False


async def ids(client: openai.AsyncOpenAI) -> list[str]:
    """Of the models; none with the key of another tenant."""
    try:
        return [one.id async for one in client.models.list()]
    except openai.PermissionDeniedError:
        return []


async def test_models_are_listed_while_they_sleep(
    site: Site, keys: dict[str, str], client: openai.AsyncOpenAI
) -> None:
    assert await ids(client) == [ASLEEP, NAME]
    found = await client.models.retrieve(NAME)
    assert (found.id, found.owned_by, found.created > 0) == (NAME, TENANT, True)
    async with site.client(keys["one"]) as one:
        assert await ids(one) == [NAME]
    seen = await asyncio.to_thread(status, site.sandbox, f"{TENANT}/{NAME}")
    assert not [one for one in seen["replicas"] if one["state"] != "held"]


async def test_a_chat_wakes_its_service(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=8, extra_body=ON
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


async def test_a_chat_comes_as_a_stream_with_its_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=NAME,
        messages=HELLO,
        max_tokens=16,
        extra_body=ON,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces = [one async for one in stream]
    assert [one.choices[0].finish_reason for one in pieces if one.choices][-1] == "length"
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 16


async def test_completions_responses_and_embeddings(client: openai.AsyncOpenAI) -> None:
    text = await client.completions.create(model=NAME, prompt="a", max_tokens=3, extra_body=ON)
    assert text.choices[0].finish_reason == "length"
    pieces = await client.completions.create(
        model=NAME, prompt="a", max_tokens=3, stream=True, extra_body=ON
    )
    assert [one.choices[0].finish_reason async for one in pieces][-1] == "length"
    said = await client.responses.create(model=NAME, input="hi", max_output_tokens=4)
    assert said.status == "completed"
    assert said.usage is not None
    assert 0 < said.usage.output_tokens <= 4
    events = await client.responses.create(model=NAME, input="hi", max_output_tokens=4, stream=True)
    assert [one.type async for one in events][-1] == "response.completed"
    made = await client.embeddings.create(model=NAME, input=["one", "two"])
    assert [len(one.embedding) for one in made.data] == [64, 64]


async def test_tools_schemas_and_log_probabilities(client: openai.AsyncOpenAI) -> None:
    """A model of random weights calls no tool; what is asked for comes through."""
    tool = {"name": "now", "parameters": {"type": "object", "properties": {}}}
    answer = await client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=4, tools=[{"type": "function", "function": tool}]
    )
    assert len(answer.choices) == 1
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    answer = await client.chat.completions.create(
        model=NAME,
        messages=HELLO,
        max_tokens=200,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}},
        },
        # Of text by a schema: random tokens may be parts of characters, of which none are told.
        logprobs=True,
        top_logprobs=3,
    )
    assert json.loads(answer.choices[0].message.content or "") == {"a": "b"}
    said = answer.choices[0].logprobs
    assert said is not None
    assert said.content is not None
    assert len(said.content[0].top_logprobs) == 3


async def test_a_long_prompt_is_answered_at_both_addresses(
    site: Site, keys: dict[str, str], client: openai.AsyncOpenAI
) -> None:
    """At the tenant's own since this client writes the model before it."""
    async with site.client(keys["one"], f"{TENANT}/{NAME}/v1") as direct:
        for one, model in ((client, NAME), (direct, "any")):
            answer = await one.chat.completions.create(model=model, messages=LONG, max_tokens=2)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens > len(LONG[0]["content"])


async def test_a_model_behind_a_long_prompt_is_found(client: openai.AsyncOpenAI) -> None:
    """As older clients write it: this one follows to the service's own address."""
    body = {"messages": LONG, "max_tokens": 2, "model": NAME}
    answer: Any = await client.post("/chat/completions", body=body, cast_to=object)
    assert answer["usage"]["prompt_tokens"] > len(LONG[0]["content"])


async def test_more_calls_than_places_are_all_answered(client: openai.AsyncOpenAI) -> None:
    calls = [
        client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=8, extra_body=ON)
        for _ in range(5 * CONCURRENCY)
    ]
    answers = await asyncio.gather(*calls)
    assert {one.choices[0].finish_reason for one in answers} == {"length"}


async def test_mistakes_raise_the_right_class_with_a_code(
    site: Site, keys: dict[str, str], client: openai.AsyncOpenAI
) -> None:
    """What the gateway says has its code; what llama.cpp says has its own words."""
    mistakes: list[tuple[type[openai.APIStatusError], str, dict[str, Any]]] = [
        (openai.NotFoundError, "SW-GATEWAY-UNKNOWN", {"model": "nothing"}),
        (openai.NotFoundError, "SW-GATEWAY-UNKNOWN", {"model": ""}),
        (openai.BadRequestError, "SW-GATEWAY-MODEL", {"extra_body": {"model": None}}),
        (openai.BadRequestError, "SW-GATEWAY-MODEL", {"extra_body": {"model": ["talk"]}}),
        (openai.BadRequestError, "", {"extra_body": {"messages": "hello"}}),
    ]
    for kind, code, said in mistakes:
        asked: dict[str, Any] = {"model": NAME, "messages": HELLO, "max_tokens": 2, **said}
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**asked)
        assert (caught.value.code if code else "") == code
        assert caught.value.message
    for asked_for in (client.files.list(), client.images.generate(model=NAME, prompt="a")):
        with pytest.raises(openai.PermissionDeniedError) as denied:
            await asked_for
        assert denied.value.code == "SW-GATEWAY-DENIED"


async def test_a_key_that_does_not_open_it_is_refused(
    site: Site, keys: dict[str, str], client: openai.AsyncOpenAI
) -> None:
    denied = openai.PermissionDeniedError
    for key, model, kind, code in (
        ("swk_1_nonsense", NAME, openai.AuthenticationError, "SW-GATEWAY-KEY"),
        (keys["other"], NAME, denied, "SW-GATEWAY-KEY-TENANT"),
        (keys["one"], ASLEEP, denied, "SW-GATEWAY-KEY-SERVICE"),
        (keys["one"], "nothing", denied, "SW-GATEWAY-KEY-SERVICE"),
    ):
        async with site.client(key) as other:
            with pytest.raises(kind) as caught:
                await other.chat.completions.create(model=model, messages=HELLO)
            assert caught.value.code == code


async def test_a_timeout_and_a_client_that_leaves_free_their_places(
    site: Site, client: openai.AsyncOpenAI
) -> None:
    """Each place is taken twice by one that leaves, and all of them are free for the next."""
    endless: dict[str, Any] = {"max_tokens": ENDLESS_TOKENS, "extra_body": ON}
    asked: dict[str, Any] = {"model": NAME, "messages": HELLO, **endless}
    # llama.cpp goes on with an answer in one piece that no client waits for: this one takes some
    # seconds at most, and ten times as long as the client waits where the machine is fast.
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.1).chat.completions.create(
            **asked | {"max_tokens": 9_999}
        )
    for _ in range(2 * CONCURRENCY):
        stream = await client.chat.completions.create(**asked, stream=True)
        await anext(aiter(stream))
        await stream.close()

    async def load() -> Any:
        return await asyncio.to_thread(status, site.sandbox, f"{TENANT}/{NAME}")

    await until_done(load, lambda seen: seen["in_flight"] == 0)
    answer = await client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=2)
    assert answer.choices


async def test_documents_are_reranked_by_a_service_that_slept(
    site: Site, keys: dict[str, str], client: openai.AsyncOpenAI
) -> None:
    """At both addresses. The other service was not started to rerank, and says so itself."""
    body = {"query": "hello", "documents": ["good-bye", "hello, hello"], "model": ASLEEP}
    async with site.client(keys["all"], f"{TENANT}/{ASLEEP}/v1") as direct:
        for one in (client, direct):
            answer: Any = await one.post("/rerank", body=body, cast_to=object)
            assert sorted(found["index"] for found in answer["results"]) == [0, 1]
            assert all(isinstance(found["relevance_score"], float) for found in answer["results"])
    with pytest.raises(openai.InternalServerError, match="does not support reranking"):
        await client.post("/rerank", body={**body, "model": NAME}, cast_to=object)
    # llama.cpp has no scores.
    with pytest.raises(openai.PermissionDeniedError, match="SW-GATEWAY-DENIED"):
        await client.post(
            "/score", body={"text_1": "a", "text_2": "b", "model": NAME}, cast_to=object
        )
