"""Tests how llama.cpp's server is asked, and how its answers, files and log are read."""

import json
import re

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.rules.engines.engine import PooledEngine, Probe
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds

ENGINE = LlamaCpp()


def models(*tags: str) -> bytes:
    """Its answer to /v1/models, as a build of October 2026 gives it."""
    model = {"id": "tiny", "aliases": ["tiny"], "tags": tags, "object": "model", "meta": {"n": 1}}
    return json.dumps({"models": [{"name": "tiny"}], "object": "list", "data": [model]}).encode()


def test_a_replica_is_known_by_its_tag():
    assert ENGINE.identified(models("chat.7.3"), "chat.7.3").probe is Probe.OURS
    assert ENGINE.identified(models("chat.7.4"), "chat.7.3").probe is Probe.STRANGER
    assert ENGINE.identified(models(), "chat.7.3").probe is Probe.STRANGER


def test_it_is_ready_once_it_has_completed_a_token():
    assert ENGINE.ready_paths("tiny") == ("/health",)
    request = ENGINE.smallest_request("tiny", (), 1)
    assert request is not None
    assert (request.method, request.path) == ("POST", "/v1/completions")
    assert json.loads(request.head) == {"model": "tiny", "prompt": "1", "max_tokens": 1}


def test_an_error_is_told_in_its_own_words():
    said = b'{"error":{"code":501,"message":"no embeddings","type":"not_supported_error"}}'
    assert ENGINE.failure(said) == "no embeddings"
    assert ENGINE.failure(b"gone \xff") == "gone \N{REPLACEMENT CHARACTER}"


def needs(*entries: str, chosen: str = "") -> ModelNeeds:
    return ENGINE.model_needs(ModelFiles("m", frozenset(entries), {}, chosen=chosen), set(), 1)


def problems(*entries: str) -> tuple[str, ...]:
    return needs(*entries).problems


PARTS = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


def test_a_model_is_one_file_or_all_of_its_parts():
    assert problems("m.gguf", "README.md") == problems(*PARTS) == ()
    assert needs(*PARTS).files == tuple(PARTS)
    assert problems("README.md") == ("no .gguf file",)
    assert problems(*PARTS[:2]) == ("no m-00003-of-00003.gguf",)
    assert problems(PARTS[1]) == ("no m-00001-of-00003.gguf, m-00003-of-00003.gguf",)
    assert problems("m-00001-of-99999.gguf")[0].endswith(" and 99994 more")
    assert ENGINE.is_model(frozenset({"m.gguf"}))
    assert not ENGINE.is_model(frozenset({"config.pbtxt", "1/"}))


@pytest.mark.parametrize(
    ("several", "choices"),
    [
        (("m-Q8_0.gguf", "m-Q4_K_M.gguf"), ("m-Q4_K_M.gguf", "m-Q8_0.gguf")),
        ((*PARTS, "a.gguf"), ("a.gguf", PARTS[0])),
        ((*PARTS, "b-00001-of-00003.gguf"), ("b-00001-of-00003.gguf", PARTS[0])),
    ],
)
def test_of_several_models_one_is_named(several: tuple[str, ...], choices: tuple[str, ...]):
    found = needs(*several)
    assert found.choices == choices
    assert f"several models: {', '.join(choices)}; name one" in found.problems[0]
    named = needs(*several, chosen=choices[0])
    assert (named.choices, named.files[0]) == ((), choices[0])
    assert needs(*several, chosen="no.gguf").problems == ("model_file: no no.gguf",)
    whole = needs("b.gguf", *PARTS, chosen=PARTS[0])
    assert (whole.files, whole.problems) == (tuple(PARTS), ())
    second = needs("b.gguf", *PARTS, chosen=PARTS[1]).problems
    assert second == (f"model_file: {PARTS[1]} is no first part: say {PARTS[0]}",)


@pytest.mark.parametrize(
    "beside",
    [
        "mmproj-F16.gguf",
        "m.mmproj-Q8_0.gguf",
        "imatrix.gguf",
        "m-LoRA-F16.gguf",
        "ggml-vocab-m.gguf",
    ],
)
def test_what_is_no_model_does_not_count(beside: str):
    found = needs("m.gguf", beside)
    assert (found.files, found.problems, found.choices) == (("m.gguf",), (), ())
    assert any("LLAMA_ARG_MMPROJ" in one for one in found.notes) == ("mmproj" in beside)
    assert needs(beside).problems == (f"no weights beside {beside}",)
    assert needs(beside, chosen=beside).problems == ()


@pytest.mark.parametrize("time", ["0.00.004.398 ", ""])
def test_a_line_of_its_log_is_read_with_and_without_a_time(time: str):
    said = "srv  load_model: failed to load model"
    assert ENGINE.log_message(f"{time}E {said}") == said
    assert ENGINE.log_notice.match(f"{time}I {said}")
    assert not ENGINE.log_notice.match(f"{time}E {said}")
    assert ENGINE.log_time_s(f"{time}E {said}", 1.0) is None


def test_in_a_pool_it_has_a_server_for_each_model_whose_words_are_put_in_later():
    pooled = " ".join(ENGINE.options(a_spec(pool="small"), is_measured=False))
    alone = " ".join(ENGINE.options(a_spec(), is_measured=False))
    words = ("--model '{file}'", "--alias '{model}'", "--host '{socket}'")
    assert all(word in pooled and word not in alone for word in words)
    measured = ENGINE.options(a_spec(pool="small"), is_measured=True)
    assert measured == ENGINE.options(a_spec(), is_measured=True)


def test_what_its_servers_have_is_read_and_ordered():
    engine: PooledEngine = ENGINE
    answer = b'{"models":{"a":"ready","b":"loading","c":"leaving"}}'
    assert (engine.ready_models(answer), engine.leaving_models(answer)) == ({"a"}, {"c"})
    load, unload = engine.load_model("m", "chat"), engine.unload_model("m")
    assert (load.path, json.loads(load.head)) == (
        "/slicewise/models/load",
        {"model": "m", "service": "chat"},
    )
    assert (unload.path, json.loads(unload.head)) == ("/slicewise/models/unload", {"model": "m"})
    # Clients of the gateway come to none of these paths.
    assert not any(re.fullmatch(path, load.path) for path in ENGINE.http_paths)
    for answer in (b"", b"[]", b'{"models":["a"]}', b'{"models":{"a":1}}'):
        with pytest.raises((TypeError, ValueError)):
            engine.ready_models(answer)
