"""Builds the smallest inference that a model accepts, from what its Triton says of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated

from pydantic import Field

from slicewise.launcher.rules.engines.engine import Request
from slicewise.launcher.rules.engines.said import Said

_BYTES_OF: Mapping[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
    "BYTES": 4,
}
"""Bytes of one zero; an empty text is its length, 0, in 4 bytes."""
_MOST_BYTES = 64 * 1024 * 1024
"""Bytes of all tensors at most: the model says how large they are."""
_MOST_INPUTS = 1000
"""Inputs of a model at most; recommenders have hundreds."""
_MOST_RANK = 32
"""Dimensions of a tensor at most: frameworks know 8 to 64, models use up to 6."""
_Name = Annotated[str, Field(max_length=1024)]
_Length = Annotated[int, Field(ge=-1, lt=2**63)]


class ServerMetadata(Said):
    """Triton's answer to /v2."""

    name: str
    version: str = ""


class RefusedInference(Said):
    """Triton's answer to a request that it refuses."""

    error: str


class _MetadataTensor(Said):
    name: _Name
    datatype: _Name
    shape: list[_Length] = Field(max_length=_MOST_RANK)


class ModelMetadata(Said):
    """Triton's answer to /v2/models/MODEL; -1 is a free dimension."""

    inputs: list[_MetadataTensor] = Field(max_length=_MOST_INPUTS)


class _ConfigTensor(Said):
    name: _Name
    optional: bool = False


class _TransactionPolicy(Said):
    decoupled: bool = False


class ModelConfig(Said):
    """Triton's answer to /v2/models/MODEL/config."""

    input: list[_ConfigTensor] = Field([], max_length=_MOST_INPUTS)
    max_batch_size: int = Field(0, ge=0, lt=2**31)
    model_transaction_policy: _TransactionPolicy = _TransactionPolicy()
    sequence_batching: Said | None = None

    @property
    def has_batches(self) -> bool:
        """Whether the first dimension of the model's tensors is the batch."""
        return bool(self.max_batch_size)


@dataclass(frozen=True)
class Inference:
    """A request of KServe's protocol with Triton's binary data: a JSON head, then the tensors."""

    head: bytes
    tensors: bytes


def model_path(model: str) -> str:
    """Return the path of a model in Triton's HTTP API."""
    return f"/v2/models/{model}"


def infer_request(model: str, content: Inference) -> Request:
    """Return the HTTP request of an inference; Triton finds the tensors by the head's length."""
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(content.head)),
    }
    return Request("POST", f"{model_path(model)}/infer", headers, content.head, content.tensors)


def smallest_inference(
    metadata: ModelMetadata, config: ModelConfig, sequence_id: int, batch: int = 1
) -> Inference | None:
    """Build an inference of zeros and empty texts, with 1 for each free dimension.

    It has every input that must be there. For a model that takes batches it has ``batch`` requests,
    for one that takes sequences it is a whole sequence. None if a plain request can't be answered:
    a decoupled model answers by streaming only. Raises ValueError for an unknown type of tensor and
    for more than 64 MiB.
    """
    if config.model_transaction_policy.decoupled:
        return None
    optional = {tensor.name for tensor in config.input if tensor.optional}
    inputs = [Tensor.of(tensor) for tensor in metadata.inputs if tensor.name not in optional]
    if config.has_batches:
        inputs = [replace(tensor, shape=(batch, *tensor.shape[1:])) for tensor in inputs]
    size = sum(tensor.size for tensor in inputs)
    if size > _MOST_BYTES:
        raise ValueError(f"its smallest input has {size} bytes; {_MOST_BYTES} are tried at most")
    return inference(inputs, bytes(size), config, sequence_id)


def inference(
    inputs: Sequence["Tensor"], contents: bytes, config: ModelConfig, sequence_id: int
) -> Inference:
    """Build an inference of these inputs; ``contents`` are their bytes, one after the other."""
    parameters: dict[str, object] = {"binary_data_output": True}
    if config.sequence_batching is not None:
        ends = {"sequence_start": True, "sequence_end": True}
        parameters |= {"sequence_id": sequence_id, **ends}
    head = {"inputs": [tensor.head() for tensor in inputs], "parameters": parameters}
    return Inference(json.dumps(head).encode(), contents)


@dataclass(frozen=True)
class Tensor:
    """An input without its content, which has ``content_bytes`` (None: as many as its zeros)."""

    name: str
    datatype: str
    shape: Sequence[int]
    content_bytes: int | None = None

    @classmethod
    def of(cls, metadata: _MetadataTensor) -> "Tensor":
        """Build it from a model's metadata; raises ValueError for a type that is not known."""
        if metadata.datatype not in _BYTES_OF:
            raise ValueError(f"type {metadata.datatype} of input {metadata.name} is not known")
        return cls(metadata.name, metadata.datatype, [max(1, length) for length in metadata.shape])

    @property
    def size(self) -> int:
        """Size of its content in bytes."""
        if self.content_bytes is not None:
            return self.content_bytes
        return prod(self.shape) * _BYTES_OF[self.datatype]

    def head(self) -> Mapping[str, object]:
        """Return its entry in a request's JSON."""
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": self.shape,
            "parameters": {"binary_data_size": self.size},
        }
