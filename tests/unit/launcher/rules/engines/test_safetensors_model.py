"""Tests which directories vLLM and SGLang take for models, and what is missing in one."""

import pytest

from slicewise.launcher.rules.engines.engine import Engine
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelIndex
from slicewise.launcher.rules.engines.sglang import SGLang
from slicewise.launcher.rules.engines.vllm import Vllm

PARTS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
BOTH = pytest.mark.parametrize("engine", [Vllm(), SGLang()], ids=["vllm", "sglang"])


def needs(
    engine: Engine, *entries: str, index: ModelIndex | None = None
) -> tuple[frozenset[str], tuple[str, ...]]:
    found = engine.model_needs(ModelFiles("m", frozenset(entries), {}, index=index), set(), 1)
    return frozenset(found.files), found.problems


def problems(engine: Engine, *entries: str) -> tuple[str, ...]:
    return needs(engine, *entries)[1]


@BOTH
def test_a_model_is_its_configuration_and_all_parts_of_its_weights(engine: Engine):
    assert problems(engine, "config.json", "model.safetensors", "tokenizer.json") == ()
    assert needs(engine, "config.json", *PARTS) == ({"config.json", *PARTS}, ())
    assert problems(engine, "config.json", *PARTS, "vision.safetensors") == ()
    assert problems(engine, "config.json", PARTS[0], PARTS[2]) == (f"no {PARTS[1]}",)
    assert problems(engine, "config.json", *PARTS[1:]) == (f"no {PARTS[0]}",)
    assert problems(engine, "model.safetensors") == ("no config.json",)
    assert problems(engine, "config.json", "m.bin") == ("no .safetensors file",)


@BOTH
@pytest.mark.parametrize(
    ("names", "problem"),
    [
        # Counted from 0, so the last number is one less than a count would be.
        ([f"model-{number:05d}-of-00002" for number in range(3)], ""),
        ([f"model-{number:05d}-of-00130" for number in range(125)], ""),
        ([f"m-{number}-of-61" for number in range(1, 62)], ""),
        ([f"m-{number}-of-61" for number in range(1, 62) if number != 30], "no m-30-of-61"),
        (["m-00001-of-000163", "m-00003-of-000163"], "no m-00002-of-000163"),
        (["m-00001-of-00002", "v-00001-of-00009", "v-00003-of-00009"], "no v-00002-of-00009"),
    ],
)
def test_without_an_index_only_a_gap_is_proof(engine: Engine, names: list[str], problem: str):
    found = problems(engine, "config.json", *(f"{one}.safetensors" for one in names))
    assert found == ((f"{problem}.safetensors",) if problem else ())


@BOTH
def test_a_number_as_long_as_a_name_takes_no_time(engine: Engine):
    far = f"m-{'9' * 200}-of-3.safetensors"
    (said,) = problems(engine, "config.json", "m-1-of-3.safetensors", far)
    assert said == (
        "no m-2-of-3.safetensors, m-3-of-3.safetensors, m-4-of-3.safetensors, "
        "m-5-of-3.safetensors and 996 more"
    )


@BOTH
def test_the_index_says_which_files_there_are(engine: Engine):
    index = ModelIndex("model.safetensors.index.json", ("a.safetensors", "b.safetensors"))
    there = ("config.json", "a.safetensors", "model-00001-of-00009.safetensors")
    files, said = needs(engine, *there, index=index)
    assert files == {"config.json", index.name, *index.files}
    assert said == ("no b.safetensors",)
    assert needs(engine, *there, "b.safetensors", index=index)[1] == ()
    wrong = ModelIndex(index.name, trouble="it is no JSON")
    assert needs(engine, *there, index=wrong)[1] == (f"{index.name}: it is no JSON",)


@BOTH
def test_what_lies_beside_the_weights_is_no_part_of_them(engine: Engine):
    beside = ("consolidated-00001-of-00004.safetensors", "adapter_model.safetensors", "original/")
    files, said = needs(engine, "config.json", *PARTS, *beside)
    assert (files, said) == ({"config.json", *PARTS}, ())
    alone = ("config.json", "consolidated.safetensors")
    assert needs(engine, *alone) == (frozenset(alone), ())


@BOTH
def test_other_engines_models_are_none(engine: Engine):
    assert engine.is_model(frozenset({"config.json", "model.safetensors"}))
    assert engine.is_model(frozenset({"config.json", "model.safetensors.index.json"}))
    adapter = {"config.json", "adapter_config.json", "adapter_model.safetensors"}
    for entries in ({"m.gguf"}, {"config.pbtxt", "1/"}, {"config.json"}, {"lora.safetensors"}):
        assert not engine.is_model(frozenset(entries))
    assert not engine.is_model(frozenset(adapter))
