"""Tests what Triton needs for a model by its files, and which files it could not load."""

from collections.abc import Mapping
from typing import Any

import pytest

from slicewise.launcher.rules.engines.model_files import ModelFiles
from slicewise.launcher.rules.engines.triton_repository import model_needs


def files(config: Mapping[str, Any] | None, *versions: str, entries: str = "") -> ModelFiles:
    """A model with these versions, each written as ``1:model.py,weights``."""
    parted = (one.partition(":") for one in versions)
    inside = {version: frozenset(names.split(",")) - {""} for version, _, names in parted}
    return ModelFiles("bert", frozenset(entries.split(",")) - {""}, inside, config)


def problems(config: Mapping[str, Any] | None, *versions: str, **entries: str) -> tuple[str, ...]:
    return model_needs(files(config, *versions, **entries), {"bert", "part"}, gpus=1).problems


PYTHON = {"backend": "python"}


def test_what_a_model_needs_is_named():
    config = {
        "name": "bert",
        "backend": "python",
        "sequence_batching": {},
        "model_transaction_policy": {"decoupled": True},
        "instance_group": [{"kind": "KIND_CPU", "count": 2}, {"kind": "KIND_GPU"}],
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": ["-1", "3"]}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": ["1"]}],
    }
    needs = model_needs(files(config, "1:model.py", "2:model.py"), {"bert"}, gpus=1)
    assert (needs.backend, needs.kinds, needs.instances) == ("python", ("KIND_CPU", "KIND_GPU"), 3)
    assert (needs.versions, needs.files) == ((2,), ("2/model.py",))
    assert (needs.inputs, needs.outputs) == (("IN INT32[-1,3]",), ("OUT STRING[1]",))
    assert needs.has_sequences
    assert needs.is_decoupled
    assert needs.problems == ()


@pytest.mark.parametrize(
    ("keys", "batch"),
    [
        ({}, 1),
        ({"max_batch_size": 8}, 1),
        ({"max_batch_size": 8, "dynamic_batching": {}}, 8),
        ({"dynamic_batching": {}}, 1),
    ],
)
def test_requests_are_gathered_where_batching_is_dynamic(keys: Mapping[str, Any], batch: int):
    assert model_needs(files(PYTHON | keys, "1:model.py"), {"bert"}, gpus=1).batch == batch


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ({}, (12,)),
        ({"latest": {"num_versions": 2}}, (3, 12)),
        ({"all": {}}, (1, 3, 12)),
        ({"specific": {"versions": ["1", "7"]}}, (1,)),
    ],
)
def test_versions_are_those_of_the_policy(policy: Mapping[str, Any], served: tuple[int, ...]):
    config = PYTHON | {"version_policy": policy}
    found = files(config, "1:model.py", "3:model.py", "12:model.py", "04:")
    needs = model_needs(found, {"bert"}, gpus=1)
    assert (needs.versions, needs.problems) == (served, ())


@pytest.mark.parametrize(
    ("versions", "config", "backend"),
    [
        ("1:model.onnx/", None, "onnxruntime"),
        ("1:notes,model.plan", {}, "tensorrt"),
        ("1:weights.onnx", {"platform": "onnxruntime_onnx"} | {"max_batch_size": 1}, "onnxruntime"),
        ("1:a.pt", {"backend": "pytorch", "default_model_filename": "a.pt"}, "pytorch"),
        ("1:", {"platform": "ensemble", "ensemble_scheduling": {}}, "ensemble"),
    ],
)
def test_the_backend_is_the_configurations_or_follows_from_the_files(versions, config, backend):
    assert model_needs(files(config, versions), {"bert"}, gpus=1).backend == backend


def test_a_file_of_all_versions_is_enough_for_the_python_backend():
    assert problems(PYTHON, "1:", entries="model.py,config.pbtxt") == ()
    assert problems({"backend": "onnxruntime"}, "1:", entries="model.onnx") != ()


@pytest.mark.parametrize(
    ("config", "versions", "said"),
    [
        (None, (), "no model"),
        (PYTHON, (), "no version directory"),
        (PYTHON, ("01:model.py",), "begins with 0"),
        (PYTHON, ("1:",), "no model.py in bert/1"),
        (PYTHON | {"version_policy": {"all": {}}}, ("1:model.py", "2:"), "version 2: no model.py"),
        (PYTHON | {"version_policy": {"specific": {"versions": ["4"]}}}, ("1:model.py",), "but 1"),
        (PYTHON | {"default_model_filename": "a.py"}, ("1:model.py",), "no a.py in bert/1"),
        (PYTHON | {"name": "bart"}, ("1:model.py",), "'bart' in config.pbtxt"),
        ({"backend": "pyhton"}, ("1:model.py",), "did you mean python"),
        ({"backend": "onnx"}, ("1:model.onnx",), "did you mean onnxruntime"),
        ({"platform": "onnx_runtime"}, ("1:model.onnx",), "did you mean onnxruntime_onnx"),
        ({}, ("1:weights",), "config.pbtxt names none"),
        (None, ("1:weights",), "there is no config.pbtxt"),
        (PYTHON | {"instance_group": [{"gpus": [1]}]}, ("1:model.py",), "gpus [1]"),
        (
            {"ensemble_scheduling": {"step": [{"model_name": n} for n in ("part", "gone")]}},
            ("1:",),
            "no model 'gone'",
        ),
    ],
)
def test_what_cannot_run_is_said(config, versions, said):
    (problem,) = problems(config, *versions)
    assert said in problem


def test_a_gpu_that_a_replica_has_not_is_asked_for():
    config = PYTHON | {"instance_group": [{"kind": "KIND_GPU"}]}
    needs = model_needs(files(config, "1:model.py"), {"bert"}, gpus=0)
    assert "KIND_GPU" in needs.problems[0]
    assert problems(config, "1:model.py") == ()


def test_a_backend_of_the_sites_own_is_a_note_unless_the_model_brings_it():
    needs = model_needs(files({"backend": "ours"}, "1:"), {"bert"}, gpus=1)
    assert (needs.problems, len(needs.notes)) == ((), 1)
    mistyped = {"backend": "pyton"}
    assert problems(mistyped, "1:", entries="libtriton_pyton.so") == ()


def test_a_configuration_that_cannot_be_read_is_the_one_problem():
    found = ModelFiles("bert", frozenset({"config.pbtxt"}), {}, None, "1:1 : no such field")
    assert model_needs(found, {"bert"}, gpus=1).problems == ("config.pbtxt: 1:1 : no such field",)
