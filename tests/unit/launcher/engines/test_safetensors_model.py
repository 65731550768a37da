"""Tests which directories vLLM and SGLang take for models, and what is missing in one."""

import pytest

from launcher.engines.engine import Engine
from launcher.engines.model_files import ModelFiles
from launcher.engines.sglang import SGLang
from launcher.engines.vllm import Vllm

PARTS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
BOTH = pytest.mark.parametrize("engine", [Vllm(), SGLang()], ids=["vllm", "sglang"])


def problems(engine: Engine, *entries: str) -> tuple[str, ...]:
    found = engine.model_needs(ModelFiles("m", frozenset(entries), {}), set(), 1)
    assert set(found.files) == {
        "config.json",
        *(one for one in entries if one.endswith(".safetensors")),
    }
    return found.problems


@BOTH
def test_a_model_is_its_configuration_and_all_parts_of_its_weights(engine: Engine):
    assert problems(engine, "config.json", "model.safetensors", "tokenizer.json") == ()
    assert problems(engine, "config.json", *PARTS) == ()
    assert problems(engine, "config.json", *PARTS, "vision.safetensors") == ()
    assert problems(engine, "config.json", *PARTS[:2]) == (f"no {PARTS[2]}",)
    assert problems(engine, "model.safetensors") == ("no config.json",)
    assert problems(engine, "config.json", "m.bin") == ("no .safetensors file",)


@BOTH
def test_other_engines_models_are_none(engine: Engine):
    assert engine.is_model(frozenset({"config.json", "model.safetensors"}))
    for entries in ({"m.gguf"}, {"config.pbtxt", "1/"}, {"config.json"}, {"lora.safetensors"}):
        assert not engine.is_model(frozenset(entries))
