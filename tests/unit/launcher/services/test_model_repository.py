"""Tests that a model repository is read as Triton would, within bounds."""

import os
from pathlib import Path

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.services.model_repository import (
    repository_digest,
    repository_needs,
    require_runnable,
    with_files,
)
from slicewise.sandbox.demo.commands import publish_models

CONFIG = 'backend: "python"\ninstance_group [{ kind: KIND_CPU count: 2 }]\n'


def put(repository: Path, model: str, config: str | bytes = CONFIG, file: str = "model.py") -> Path:
    version = repository / model / "1"
    version.mkdir(parents=True)
    (version / file).touch()
    text = config if isinstance(config, bytes) else config.encode()
    (repository / model / "config.pbtxt").write_bytes(text)
    return repository / model


def spec(repository: Path, **keys: object) -> ServiceSpec:
    return a_spec(model_repository=str(repository), **({"model": "bert"} | keys))


def refused(repository: Path, **keys: object) -> tuple[str, str]:
    with pytest.raises(InvalidInputError) as caught:
        require_runnable(spec(repository, **keys))
    return caught.value.refusal.code, caught.value.refusal.message


def test_the_demos_model_can_run(tmp_path: Path):
    repository = publish_models(tmp_path)
    needs = require_runnable(spec(repository, model="tokens"))
    assert (needs.backend, needs.kinds, needs.instances) == ("python", ("KIND_CPU",), 2)
    assert needs.inputs == ("CONTEXT_TOKENS INT32[1]", "GENERATED_TOKENS INT32[1]")
    assert needs.files == ("1/model.py",)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CONFIG + "sequnce_batching {}", '3:1 : Message type "inference.ModelConfig" has no field'),
        ("instance_group [{ kind: KIND_FOO }]", "no value named KIND_FOO"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (1024 * 1024 + 1), "more than 1048576 bytes"),
        ("input [" + '{ name: "' + "x" * 100_000, "input"),
    ],
)
def test_a_configuration_that_triton_could_not_read_is_refused(
    tmp_path: Path, config: str | bytes, said: str
):
    put(tmp_path, "bert", config)
    code, message = refused(tmp_path)
    assert code == "SW-SERVICE-MODEL"
    assert said in message
    assert len(message) < 400


def test_a_fifo_in_place_of_a_configuration_is_not_waited_for(tmp_path: Path):
    model = put(tmp_path, "bert")
    (model / "config.pbtxt").unlink()
    os.mkfifo(model / "config.pbtxt")
    assert refused(tmp_path)[0] == "SW-SERVICE-MODEL"


def test_a_broken_neighbour_is_named_since_triton_would_end_over_it(tmp_path: Path):
    put(tmp_path, "bert")
    put(tmp_path, "good")
    put(tmp_path, "gpt", file="weights")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README").touch()
    code, message = refused(tmp_path)
    assert code == "SW-SERVICE-MODEL"
    assert "gpt: version 1: no model.py in gpt/1" in message
    assert "docs: no model" in message
    assert "good" not in message


def test_a_neighbour_in_a_pool_is_no_trouble_as_each_is_loaded_alone(tmp_path: Path):
    put(tmp_path, "bert")
    put(tmp_path, "gpt", file="weights")
    assert require_runnable(spec(tmp_path, pool="small")).problems == ()


def test_a_model_that_runs_others_or_keeps_state_can_be_in_no_pool(tmp_path: Path):
    put(tmp_path, "step", CONFIG + "sequence_batching {}")
    step = 'ensemble_scheduling { step [{ model_name: "step" model_version: -1 }] }'
    put(tmp_path, "bert", f'platform: "ensemble"\n{step}')
    assert refused(tmp_path, pool="small") == (
        "SW-SERVICE",
        "Model bert runs step, which no replica of a pool would load.",
    )
    code, message = refused(tmp_path, model="step", max_replicas=1, pool="small")
    assert (code, message[:45]) == ("SW-SERVICE", "Model step keeps the state of sequences, and ")


def test_in_a_pool_the_model_s_own_files_are_named_and_say_how_much_memory_it_takes(tmp_path: Path):
    model = put(tmp_path, "bert")
    put(tmp_path, "gpt")
    alone = with_files(spec(tmp_path))
    assert (alone.model_digest, alone.model_mib) == (repository_digest(tmp_path), None)
    pooled = with_files(spec(tmp_path, pool="small"))
    assert (pooled.model_digest, pooled.model_mib) == (repository_digest(model), 2)
    with (model / "1" / "weights").open("wb") as weights:
        weights.truncate(100 * 1024**2)
    (tmp_path / "gpt" / "1" / "more").touch()
    larger = with_files(spec(tmp_path, pool="small"))
    # The configuration begins another MiB.
    assert larger.model_mib == 122
    assert larger.model_digest == repository_digest(model) != pooled.model_digest
    assert with_files(spec(tmp_path, pool="small", model_mib=7)).model_mib == 7
    unseen = with_files(spec(tmp_path / "none", pool="small"))
    assert (unseen.model_digest, unseen.model_mib) == (None, None)


def test_sequences_need_one_replica_or_their_way_to_it(tmp_path: Path):
    put(tmp_path, "bert", CONFIG + "sequence_batching {}")
    code, message = refused(tmp_path, max_replicas=2)
    assert code == "SW-SERVICE"
    assert "2 replicas" in message
    assert require_runnable(spec(tmp_path, max_replicas=1)).has_sequences
    together = spec(tmp_path, max_replicas=2, session_affinity="sequence")
    assert require_runnable(together).has_sequences


def test_an_ensemble_keeps_the_state_that_its_parts_keep(tmp_path: Path):
    put(tmp_path, "step", CONFIG + "sequence_batching {}")
    step = 'ensemble_scheduling { step [{ model_name: "step" model_version: -1 }] }'
    put(tmp_path, "bert", f'platform: "ensemble"\n{step}')
    assert refused(tmp_path, max_replicas=2)[0] == "SW-SERVICE"
    assert require_runnable(spec(tmp_path)).parts == ("step",)


def test_every_problem_of_the_model_is_said_together(tmp_path: Path):
    put(tmp_path, "bert", 'name: "bart"\nbackend: "pyton"')
    code, message = refused(tmp_path)
    assert code == "SW-SERVICE-MODEL"
    assert "'bart'" in message
    assert "did you mean python?" in message


def test_models_come_in_order(tmp_path: Path):
    for name in ("b", "a"):
        put(tmp_path, name)
    assert list(repository_needs(ENGINES["triton"], tmp_path, 1)) == ["a", "b"]


def test_a_model_of_llama_cpp_needs_its_own_directory_only(tmp_path: Path):
    """Its server loads no other one."""
    for model, names in {"bert": ["a.gguf"], "two": ["a.gguf", "b.gguf"], "none": []}.items():
        (tmp_path / model).mkdir()
        for name in names:
            (tmp_path / model / name).touch()
    needs = require_runnable(spec(tmp_path, engine="llamacpp"))
    assert (needs.files, needs.versions) == (("a.gguf",), ())
    for model, said in {"two": "several models: a.gguf, b.gguf", "none": "no .gguf file"}.items():
        code, message = refused(tmp_path, engine="llamacpp", model=model)
        assert (code, said in message) == ("SW-SERVICE-MODEL", True)
    assert require_runnable(
        spec(tmp_path, engine="llamacpp", model="two", model_file="b.gguf")
    ).files == ("b.gguf",)
    assert refused(tmp_path, engine="vllm", model_file="b.gguf")[0] == "SW-SERVICE"


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (b"", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (b'{"weight_map": ["model.safetensors"]}', "it has no weight_map"),
        (b'{"weight_map": {}}', "it has no weight_map"),
        (b'{"weight_map": {"t": 1}}', "names 1, which"),
        (b'{"weight_map": {"t": null, "u": "a.safetensors"}}', "names None, which"),
        (b'{"weight_map": {"t": "../bert/a.safetensors"}}', "names '../bert/a.safetensors', which"),
        (b'{"weight_map": {"t": "/etc/a.safetensors"}}', "names '/etc/a.safetensors', which"),
        (b'{"weight_map": {"t": "a\\u0000.safetensors"}}', "which is no .safetensors"),
        (b'{"weight_map": {"t": "a\\n.safetensors"}}', "which is no .safetensors"),
        (b'{"weight_map": {"t": "%s"}}' % (b"x" * 100_000), "which is no .safetensors"),
        (b'{"weight_map": {"t": "model.bin"}}', "names 'model.bin', which"),
        (b"[" * 1_000_001, "more than 1000000 entries"),
        (b" " * (64 * 1024 * 1024 + 1), "more than 67108864 bytes"),
    ],
    ids=range(15),
)
def test_an_index_that_is_none_is_refused_within_bounds(tmp_path: Path, index: bytes, said: str):
    (tmp_path / "bert").mkdir()
    for name in ("config.json", "model.safetensors", "a.safetensors"):
        (tmp_path / "bert" / name).write_text("{}")
    (tmp_path / "bert" / "model.safetensors.index.json").write_bytes(index)
    code, message = refused(tmp_path, engine="vllm")
    assert (code, said in message) == ("SW-SERVICE-MODEL", True), message
    assert len(message) < 400


def test_weights_may_be_links_but_none_that_lead_nowhere(tmp_path: Path):
    """As downloads keep them: each file a link to one that is named by its content."""
    (tmp_path / "bert").mkdir()
    (tmp_path / "blob").touch()
    (tmp_path / "bert" / "config.json").write_text("{}")
    index = tmp_path / "bert" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"t": "a.safetensors", "u": "b.safetensors"}}')
    (tmp_path / "bert" / "a.safetensors").symlink_to("../blob")
    (tmp_path / "bert" / "b.safetensors").symlink_to("../gone")
    assert "no b.safetensors" in refused(tmp_path, engine="vllm")[1]
    (tmp_path / "gone").touch()
    assert require_runnable(spec(tmp_path, engine="vllm")).problems == ()
    # A container is given the repository alone.
    inside = {"engine": "vllm", "runtime": "apptainer", "image": "/i.sif"}
    assert require_runnable(spec(tmp_path, **inside)).problems == ()
    (tmp_path / "own").mkdir()
    (tmp_path / "bert").rename(tmp_path / "own" / "bert")
    for name in "ab":
        (tmp_path / "own" / "bert" / f"{name}.safetensors").unlink()
        (tmp_path / "own" / "bert" / f"{name}.safetensors").symlink_to("../../blob")
    assert require_runnable(spec(tmp_path / "own", engine="vllm")).problems == ()
    assert "a.safetensors, b.safetensors leads out" in refused(tmp_path / "own", **inside)[1]


def test_a_fifo_in_place_of_an_index_is_not_waited_for(tmp_path: Path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "bert" / "model.safetensors.index.json")
    assert "that is no file" in refused(tmp_path, engine="vllm")[1]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (b"", "config.json: it is no JSON"),
        (b"<html>404</html>", "config.json: it is no JSON"),
        (b'{"model_type": "qwen3",', "config.json: it is no JSON"),
        (b"\xff\xfe{}", "config.json: it is no JSON"),
        (b"[]", "config.json: it is no JSON object"),
    ],
)
def test_a_configuration_that_no_engine_could_read(tmp_path: Path, config: bytes, said: str):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "model.safetensors").touch()
    (tmp_path / "bert" / "config.json").write_bytes(config)
    assert said in refused(tmp_path, engine="vllm")[1]


def test_pointers_of_git_are_no_weights(tmp_path: Path):
    """As a clone without git-lfs leaves them."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1352\n"
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}")
    (tmp_path / "bert" / "model.safetensors").write_text(pointer)
    said = "model.safetensors is a pointer of Git LFS: git lfs pull"
    assert said in refused(tmp_path, engine="vllm")[1]
    (tmp_path / "bert" / "model.safetensors").write_text("w")
    assert require_runnable(spec(tmp_path, engine="vllm")).problems == ()


@pytest.mark.parametrize(
    ("number", "count"), [("1", "3"), ("000001", "000003"), ("00001", "3"), ("00000", "00000")]
)
def test_parts_with_numbers_that_llama_cpp_does_not_follow(tmp_path: Path, number: str, count: str):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / f"m-{number}-of-{count}.gguf").touch()
    for chosen in (None, f"m-{number}-of-{count}.gguf"):
        code, said = refused(tmp_path, engine="llamacpp", model_file=chosen)
        assert (code, "names such as m-00001-of-0000" in said) == ("SW-SERVICE-MODEL", True)
