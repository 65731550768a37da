"""Tests the smallest inference that a model accepts."""

import json
from typing import Any

import pytest

from slicewise.launcher.rules.engines.triton_inference import (
    Inference,
    ModelConfig,
    ModelMetadata,
    smallest_inference,
)


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def smallest(inputs: list[dict[str, Any]], config: dict[str, Any]) -> Inference | None:
    metadata = ModelMetadata.parse(json.dumps({"inputs": inputs}).encode())
    return smallest_inference(metadata, ModelConfig.parse(json.dumps(config).encode()), 77)


def head_of(inputs: list[dict[str, Any]], **config: Any) -> tuple[dict[str, Any], bytes]:
    request = smallest(inputs, config)
    assert request is not None
    return json.loads(request.head), request.tensors


def test_free_dimensions_are_one_and_all_is_zero() -> None:
    head, tensors = head_of([tensor("A", "FP32", -1, 3, 2), tensor("B", "INT64", 1)])
    assert head["inputs"] == [
        {
            "name": "A",
            "datatype": "FP32",
            "shape": [1, 3, 2],
            "parameters": {"binary_data_size": 24},
        },
        {"name": "B", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
    ]
    assert tensors == bytes(32)


def test_a_text_is_empty() -> None:
    """Its length, 0, in four bytes."""
    head, tensors = head_of([tensor("TEXT", "BYTES", -1, 1)])
    assert head["inputs"][0]["parameters"] == {"binary_data_size": 4}
    assert tensors == b"\0\0\0\0"


def test_half_precision_has_no_json_and_needs_none() -> None:
    assert head_of([tensor("A", "FP16", -1, 4), tensor("B", "BF16", 2)])[1] == bytes(12)


def test_an_optional_input_is_left_out() -> None:
    given = [{"name": "A"}, {"name": "SEED", "optional": True}]
    head, _ = head_of([tensor("A", "INT32", 1), tensor("SEED", "UINT64", 1)], input=given)
    assert [one["name"] for one in head["inputs"]] == ["A"]


def test_a_sequence_begins_and_ends_with_it() -> None:
    head, _ = head_of([tensor("A", "INT32", 1)], sequence_batching={"max_sequence_idle": 1})
    assert head["parameters"] == {
        "binary_data_output": True,
        "sequence_id": 77,
        "sequence_start": True,
        "sequence_end": True,
    }
    assert "sequence_id" not in head_of([tensor("A", "INT32", 1)])[0]["parameters"]


def test_a_decoupled_model_answers_by_streaming_only() -> None:
    config = {"model_transaction_policy": {"decoupled": True}}
    assert smallest([tensor("A", "INT32", 1)], config) is None


def test_a_type_that_nobody_knows_is_said() -> None:
    with pytest.raises(ValueError, match="FP8 of input A"):
        head_of([tensor("A", "FP8", 1)])


def test_no_model_makes_the_launcher_hold_its_giant_input() -> None:
    mib = 1024 * 1024
    assert (
        len(head_of([tensor("A", "UINT8", 32, mib), tensor("B", "UINT8", 32, mib)])[1]) == 64 * mib
    )
    with pytest.raises(ValueError, match="4000000000000 bytes"):
        head_of([tensor("A", "FP32", 1_000_000, 1_000_000)])


def metadata_of(shape: str, name: str = "A") -> str:
    return f'{{"name": "{name}", "datatype": "FP32", "shape": [{shape}]}}'


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (metadata_of(",".join(["1"] * 33)), "32 items"),
        (metadata_of("1" + "0" * 19), "less than"),
        (metadata_of("-2"), "greater than"),
        (metadata_of("", name="A" * 1025), "1024 characters"),
        (",".join([metadata_of("")] * 1001), "1000 items"),
        (",".join(["[]"] * 10_001), "20000 parts"),
    ],
)
def test_what_is_beyond_a_bound_is_said(inputs: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as found:
        ModelMetadata.parse(f'{{"inputs": [{inputs}]}}'.encode())
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", '"x"', "{}", '{"inputs": null}', '{"inputs": [{"name": 1}]}'),
        "[" * 9999,
        *(
            f'{{"inputs": [{metadata_of(length)}]}}'
            for length in ("1e999", "NaN", "true", '"4"', "1.5")
        ),
    ],
)
def test_what_is_none_of_tritons_answers_is_none(text: str) -> None:
    with pytest.raises(TypeError):
        ModelMetadata.parse(text.encode())


def test_the_largest_shape_that_can_be_said_is_soon_refused() -> None:
    with pytest.raises(ValueError, match="its smallest input has"):
        head_of([tensor(str(number), "FP64", *[2**63 - 1] * 32) for number in range(500)])


def test_a_model_of_a_thousand_inputs_is_read() -> None:
    """As Triton writes its configuration."""
    one = {"name": "", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [1, 3, 224]}
    flags = {"is_shape_tensor": False, "allow_ragged_batch": False, "optional": False}
    inputs = [{**one, **flags, "name": f"input_{number}"} for number in range(1000)]
    config = json.dumps({"name": "wide", "input": inputs, "max_batch_size": 8}).encode()
    assert len(ModelConfig.parse(config).input) == 1000
