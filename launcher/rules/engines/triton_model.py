"""Loads and unloads models of a running Triton, by the repository extension of its protocol.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from slicewise.launcher.rules.engines.engine import Call, Request
from slicewise.launcher.rules.engines.said import Said
from slicewise.launcher.rules.engines.triton_inference import (
    ModelConfig,
    ModelMetadata,
    infer_request,
    model_path,
    smallest_inference,
)
from slicewise.launcher.rules.engines.triton_sample import Sample


class _IndexedVersion(Said):
    name: str
    state: str = ""


class _RepositoryIndex(Said):
    versions: list[_IndexedVersion]


def models_in_state(index: bytes, state: str) -> frozenset[str]:
    """Return the models with a version in that state, by the answer to ``index_request``.

    Raises TypeError or ValueError if it is none.
    """
    versions = _RepositoryIndex.parse(b'{"versions":%b}' % index).versions
    return frozenset(version.name for version in versions if version.state == state)


@dataclass(frozen=True)
class TritonModel:
    """A model in Triton, as Triton describes it.

    Attributes:
        sample: inputs of its requests; None makes zeros.
    """

    name: str
    metadata: Mapping[str, Any]
    config: Mapping[str, Any]
    sample: Sample | None

    @property
    def processes(self) -> int:
        """How many processes serve the model by its configuration."""
        return processes_of(self.config)

    def requests(self, batch: int, count: int) -> Iterator[Request]:
        """Yield ``count`` requests, each a sequence of its own where the model takes sequences.

        Raises ValueError.
        """
        if why := takes_batch(self.config, batch):
            raise ValueError(why)
        for number in range(1, 1 + count):
            config = ModelConfig.model_validate(self.config)
            if self.sample is not None:
                yield infer_request(self.name, self.sample.inference(config, batch, number))
                continue
            metadata = ModelMetadata.model_validate(self.metadata)
            inference = smallest_inference(metadata, config, number, batch)
            if inference is None:
                raise ValueError("it only answers by streaming")
            yield infer_request(self.name, inference)


def load(
    name: str, processes: int | None, sample: Sample | None
) -> Generator[Request, bytes, TritonModel]:
    """Load a model with ``processes`` (None: as configured); the steps of ``Engine.load``."""
    path = model_path(name)
    yield control(name, "load", {})
    asked = configured(json.loads((yield _get(f"{path}/config"))), processes)
    # A model that is loaded again would be there twice for a while, where only one may fit.
    yield control(name, "unload", {})
    while not _is_unloaded(name, (yield index_request())):
        pass
    yield control(name, "load", {"config": json.dumps(asked)})
    metadata = json.loads((yield _get(path)))
    return TritonModel(name, metadata, json.loads((yield _get(f"{path}/config"))), sample)


def _is_unloaded(name: str, index: bytes) -> bool:
    listed = json.loads(index)
    return all(model.get("reason") == "unloaded" for model in listed if model["name"] == name)


def index_request() -> Request:
    """Build the question for the repository's models and the state of each."""
    return _post("/v2/repository/index", {})


def control(name: str, what: Literal["load", "unload"], parameters: Mapping[str, str]) -> Request:
    """Build what lets the server load or unload a model of its repository."""
    return _post(f"/v2/repository/models/{quote(name, safe='')}/{what}", {"parameters": parameters})


def load_call(name: str) -> Call:
    """Build what lets the server load a model of its repository, by gRPC."""
    path = "/inference.GRPCInferenceService/RepositoryModelLoad"
    text, length = name.encode(), bytearray()
    left = len(text)
    while left > _MOST_IN_A_BYTE:
        length.append(left & _MOST_IN_A_BYTE | 0x80)
        left >>= 7
    return Call(path, bytes((_MODEL_NAME, *length, left)) + text)


_MODEL_NAME = 2 << 3 | 2
"""RepositoryModelLoadRequest's second field, a text: the model's name (grpc_service.proto)."""
_MOST_IN_A_BYTE = 0x7F


def _get(path: str) -> Request:
    return Request("GET", path)


def _post(path: str, body: object) -> Request:
    return Request("POST", path, {"Content-Type": "application/json"}, json.dumps(body).encode())


def configured(config: Mapping[str, Any], processes: int | None) -> Mapping[str, Any]:
    """Return a model's configuration for ``processes`` (None: as it is) without dynamic batching.

    Each inference already carries a whole batch; a batcher would wait for more, or join two.
    """
    kept = {key: value for key, value in config.items() if key != "dynamic_batching"}
    if processes is None:
        return kept
    groups = config.get("instance_group") or [{}]
    return {**kept, "instance_group": [{**groups[0], "count": processes}]}


def processes_of(config: Mapping[str, Any]) -> int:
    """Return how many processes serve the model by its configuration."""
    return sum(group.get("count", 1) for group in config.get("instance_group", ())) or 1


def takes_batch(config: Mapping[str, Any], batch: int) -> str:
    """Return why a model can't take such a batch; "" if it can."""
    largest = config.get("max_batch_size", 0)
    if batch <= max(1, largest):
        return ""
    return f"max_batch_size of its configuration is {largest}"
