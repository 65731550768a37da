"""The smallest inference that a model accepts, from what its server says of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

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
"""Of one zero; an empty text is its length, 0, in 4 bytes."""
_MOST_BYTES = 64 * 1024 * 1024
"""Of the tensors: a tenant's model says how large they are, and the launcher is everybody's."""


@dataclass(frozen=True)
class Inference:
    """A request of KServe's protocol with Triton's binary data: a JSON head, then the tensors."""

    head: bytes
    tensors: bytes


def smallest_inference(
    metadata: Mapping[str, Any], config: Mapping[str, Any], sequence_id: int, batch: int = 1
) -> Inference | None:
    """Zeros and empty texts in every input that must be there, with 1 for each free dimension.

    Of a model that takes batches it has so many requests, of one that takes sequences it is a whole
    one. None if a plain request can't be answered: a decoupled model answers by streaming only.
    Raises ValueError for a type of tensor that is not known and for more than 64 MiB, KeyError for
    an answer that is none of Triton's.
    """
    if config.get("model_transaction_policy", {}).get("decoupled"):
        return None
    optional = {one["name"] for one in config.get("input", ()) if one.get("optional")}
    inputs = [Tensor.of(one) for one in metadata["inputs"] if one["name"] not in optional]
    if has_batches(config):
        inputs = [replace(one, shape=(batch, *one.shape[1:])) for one in inputs]
    size = sum(one.size for one in inputs)
    if size > _MOST_BYTES:
        raise ValueError(f"its smallest input has {size} bytes; {_MOST_BYTES} are tried at most")
    return inference(inputs, bytes(size), config, sequence_id)


def has_batches(config: Mapping[str, Any]) -> bool:
    """Whether the first dimension of its tensors is the batch."""
    return bool(config.get("max_batch_size", 0))


def inference(
    inputs: Sequence["Tensor"], contents: bytes, config: Mapping[str, Any], sequence_id: int
) -> Inference:
    """Of these inputs, which have these contents, one behind the other."""
    parameters: dict[str, object] = {"binary_data_output": True}
    if "sequence_batching" in config:
        ends = {"sequence_start": True, "sequence_end": True}
        parameters |= {"sequence_id": sequence_id, **ends}
    head = {"inputs": [one.head() for one in inputs], "parameters": parameters}
    return Inference(json.dumps(head).encode(), contents)


@dataclass(frozen=True)
class Tensor:
    """An input, without what is in it: so many bytes, those of its zeros if None."""

    name: str
    datatype: str
    shape: Sequence[int]
    content_bytes: int | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Tensor":
        """As a model's metadata has it; ValueError for a type that is not known."""
        shape = [max(1, int(length)) for length in said["shape"]]
        if said["datatype"] not in _BYTES_OF:
            raise ValueError(f"type {said['datatype']} of input {said['name']} is not known")
        return cls(said["name"], said["datatype"], shape)

    @property
    def size(self) -> int:
        """In bytes."""
        if self.content_bytes is not None:
            return self.content_bytes
        return prod(self.shape) * _BYTES_OF[self.datatype]

    def head(self) -> Mapping[str, object]:
        """Its entry in a request's JSON."""
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": self.shape,
            "parameters": {"binary_data_size": self.size},
        }
