"""Tests that a request of a file becomes a batch of Triton's binary data."""

import json
import struct
from typing import Any

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.launcher.rules.engines.triton_inference import ModelConfig
from slicewise.launcher.rules.engines.triton_sample import parse_sample

BATCHED = ModelConfig(max_batch_size=8)


def text(datatype: str, shape: list[int], data: Any) -> str:
    tensor = {"name": "A", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], "outputs": [{"name": "B"}]})


def test_a_request_is_repeated_for_the_batch() -> None:
    request = parse_sample(text("INT16", [1, 2], [[1, 2]])).inference(BATCHED, 3, 7)
    assert request.tensors == struct.pack("<6h", *(1, 2) * 3)
    assert json.loads(request.head) == {
        "inputs": [
            {
                "name": "A",
                "datatype": "INT16",
                "shape": [3, 2],
                "parameters": {"binary_data_size": 12},
            }
        ],
        "parameters": {"binary_data_output": True},
    }


def test_a_model_without_batches_gets_it_as_it_is() -> None:
    request = parse_sample(text("FP32", [2], [1.5, 2])).inference(ModelConfig(), 1, 7)
    assert request.tensors == struct.pack("<2f", 1.5, 2)
    assert json.loads(request.head)["inputs"][0]["shape"] == [2]


def test_texts_have_their_length_before_them() -> None:
    request = parse_sample(text("BYTES", [1, 2], ["é", ""])).inference(BATCHED, 1, 7)
    assert request.tensors == b"\2\0\0\0\xc3\xa9\0\0\0\0"


def test_a_sequence_is_whole() -> None:
    config = ModelConfig.parse(b'{"max_batch_size": 8, "sequence_batching": {}}')
    head = json.loads(parse_sample(text("BOOL", [1], [True])).inference(config, 1, 7).head)
    wanted = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    assert wanted.items() <= head["parameters"].items()


def test_a_sample_that_is_a_batch_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="input A of the data must be one request"):
        parse_sample(text("INT8", [2], [1, 2])).inference(BATCHED, 1, 7)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "[]",
        "{}",
        '{"inputs": 3}',
        '{"inputs": [{"name": "A"}]}',
        text("INT8", [1], [300]),
        text("INT8", [2], [1]),
        text("INT8", [-1], [1]),
        text("FP32", [1], ["x"]),
        text("BF16", [1], [1]),
        '{"inputs": ' + "[" * 100_000,
        text("FP32", [1], [0]).replace("[0]", f"[{'9' * 4000}]"),
        text("FP32", [1], [0]).replace("[0]", f"[{'9' * 5000}]"),
        text("FP32", [7], [0]).replace("[7]", "[1e999]"),
    ],
)
def test_anything_else_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE"):
        parse_sample(bad)
