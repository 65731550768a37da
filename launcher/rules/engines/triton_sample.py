"""Reads a request's inputs from a file in KServe's JSON, ``{"inputs": [{"name": ...}]}``."""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.launcher.rules.engines.triton_inference import (
    Inference,
    ModelConfig,
    Tensor,
    inference,
)

_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


@dataclass(frozen=True)
class Sample:
    """Inputs of one request, packed as Triton's binary data."""

    inputs: Sequence[tuple[Tensor, bytes]]

    def inference(self, config: ModelConfig, batch: int, sequence_id: int) -> Inference:
        """Build an inference that repeats the request ``batch`` times, if the model takes batches.

        Raises ValueError if the sample is a batch itself.
        """
        copies = batch if config.has_batches else 1
        tensors = [_repeated(one, len(content), copies, config) for one, content in self.inputs]
        contents = b"".join(content * copies for _, content in self.inputs)
        return inference(tensors, contents, config, sequence_id)


def _repeated(tensor: Tensor, content_bytes: int, copies: int, config: ModelConfig) -> Tensor:
    shape = tensor.shape
    if config.has_batches:
        if shape[:1] != [1]:
            raise ValueError(f"input {tensor.name} of the data must be one request: shape [1, ...]")
        shape = [copies, *shape[1:]]
    return Tensor(tensor.name, tensor.datatype, shape, content_bytes * copies)


def parse_sample(text: str) -> Sample:
    """Read a request's JSON; raises InvalidInputError (SW-INPUT-FILE) for anything else."""
    try:
        return Sample([_input(load) for load in json.loads(text)["inputs"]])
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError, struct.error) as error:
        raise InvalidInputError(
            Code.INPUT_FILE,
            f"The data are not an inference request: {type(error).__name__}: {error}.",
            'Write {"inputs": [{"name": ..., "datatype": ..., "shape": [1, ...], "data": [...]}]}, '
            "as curl would send it.",
        ) from None


def _input(tensor: Mapping[str, Any]) -> tuple[Tensor, bytes]:
    shape = [int(length) for length in tensor["shape"]]
    values = list(_flat(tensor["data"]))
    if len(values) != prod(shape):
        raise ValueError(f"input {tensor['name']} has {len(values)} values for shape {shape}")
    return Tensor(str(tensor["name"]), tensor["datatype"], shape), _packed(
        tensor["datatype"], values
    )


def _flat(data: Any) -> Iterator[Any]:
    if isinstance(data, list):
        for item in data:
            yield from _flat(item)
    else:
        yield data


def _packed(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        texts = [str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)
