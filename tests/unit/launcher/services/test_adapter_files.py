"""Tests which LoRA adapters are refused before a service with them is submitted."""

import json
from pathlib import Path

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.services.adapter_files import require_adapter_engine, require_adapters
from slicewise.launcher.services.model_repository import repository_digest

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "x/Tiny"}


def spec(repository: Path, **change: object) -> ServiceSpec:
    keys = {"tenant": "nlp", "model": "tiny", "profile": "h200", "engine": "vllm"}
    adapters = {"adapters": {"legal": "lora/legal"}}
    return a_spec(model_repository=str(repository), **(keys | adapters | change))


def put(
    repository: Path, config: str | None = None, *, weights: bool = True, **keys: object
) -> Path:
    directory = repository / "lora" / "legal"
    directory.mkdir(parents=True)
    text = json.dumps(CONFIG | keys) if config is None else config
    (directory / "adapter_config.json").write_text(text)
    if weights:
        (directory / "adapter_model.safetensors").touch()
    return directory


def refused(one: ServiceSpec) -> str:
    with pytest.raises(InvalidInputError) as caught:
        require_adapters(one)
    assert caught.value.refusal.code == "SW-SERVICE-MODEL"
    return caught.value.refusal.message


def test_an_adapter_that_peft_has_saved_is_taken(tmp_path: Path):
    put(tmp_path)
    assert require_adapters(spec(tmp_path)) == ()
    assert require_adapters(spec(tmp_path, adapters={})) == ()


def test_one_that_was_made_for_another_model_is_told_of(tmp_path: Path):
    put(tmp_path, base_model_name_or_path="meta/Other-7B/")
    (note,) = require_adapters(spec(tmp_path))
    assert note == "chat:legal was made for Other-7B, not for tiny"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"r": 32}, "its rank is 32, above 16: write adapter_rank = 32"),
        ({"rank_pattern": {"q_proj": 64}}, "its rank is 64, above 16: write adapter_rank = 64"),
        ({"r": 1024}, "its rank is 1024: no engine loads one above 512"),
        ({"r": "many"}, "its r is no positive whole number"),
        ({"r": None}, "its r is no positive whole number"),
        ({"peft_type": "IA3"}, "its peft_type is 'IA3', not LORA"),
        ({"use_dora": True}, "use_dora is not served"),
        ({"bias": "all"}, "bias is not served"),
    ],
)
def test_one_that_no_server_would_load_is_refused(
    tmp_path: Path, keys: dict[str, object], said: str
):
    put(tmp_path, **keys)
    assert f"legal ({tmp_path}/lora/legal): {said}." in refused(spec(tmp_path))


def test_a_larger_rank_is_taken_where_the_service_says_so(tmp_path: Path):
    put(tmp_path, r=32)
    assert require_adapters(spec(tmp_path, adapter_rank=32)) == ()


def test_missing_files_and_unreadable_ones_are_named(tmp_path: Path):
    assert "no adapter_config.json, no adapter_model.safetensors" in refused(spec(tmp_path))
    directory = put(tmp_path, "[" * 5000, weights=False)
    assert "adapter_config.json is no JSON object" in refused(spec(tmp_path))
    (directory / "adapter_config.json").unlink()
    (directory / "adapter_config.json").mkdir()
    assert "no adapter_config.json" in refused(spec(tmp_path))


def test_only_engines_that_have_them_as_models_may_have_adapters(tmp_path: Path):
    for engine in ("vllm", "sglang"):
        require_adapter_engine(spec(tmp_path, engine=engine))
    for engine in ("llamacpp", "triton"):
        require_adapter_engine(spec(tmp_path, engine=engine, adapters={}))
        with pytest.raises(InvalidInputError, match="can't load adapters as models"):
            require_adapter_engine(spec(tmp_path, engine=engine))


def test_adapters_change_no_digest_of_a_service_that_has_some(tmp_path: Path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").touch()
    before = repository_digest(tmp_path, but_adapters_of="tiny")
    put(tmp_path)
    assert repository_digest(tmp_path, but_adapters_of="tiny") == before
    assert repository_digest(tmp_path) != before
