"""A CPU model for Triton's Python backend, whose work grows with the tokens of a request.

What is real: Triton, its queue, its scheduler and its two model instances; a recurrent network that
reads the context in one step and then makes one token after another, each from the state that the
last one left. What is not: the network is tiny and its weights are fixed numbers, and as a dozen
replicas share a laptop's cores, each instance sleeps for the rest of the time that the request
would have taken on an accelerator: ``parameters`` in config.pbtxt say how long that is per token.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

STATE_SIZE = 32
"""Numbers in the state, and tokens in the vocabulary."""


def _weights(rows: int, columns: int, frequency: float) -> Any:
    """Fixed weights without a seed: a grid of sines, scaled so that the state keeps moving."""
    grid = np.outer(np.arange(1, rows + 1), np.arange(1, columns + 1))
    return np.sin(grid * frequency) * (4.0 / np.sqrt(columns))


RECURRENT = _weights(STATE_SIZE, STATE_SIZE, 0.7310)
EMBEDDING = _weights(STATE_SIZE, STATE_SIZE, 1.6180)


def prefill(context_tokens: int) -> Any:
    """The state after reading the context, in one matrix product over all its positions."""
    prompt = EMBEDDING[np.arange(context_tokens) * 7 % STATE_SIZE]
    return np.tanh(prompt @ RECURRENT).sum(axis=0) / max(context_tokens, 1)


def decode(state: Any, generated_tokens: int) -> Any:
    """Generate tokens, each chosen greedily from the state and fed back into it."""
    tokens = np.empty(generated_tokens, dtype=np.int32)
    token = 0
    for position in range(generated_tokens):
        state = np.tanh(RECURRENT @ state + EMBEDDING[token])
        token = int(state.argmax())
        tokens[position] = token
    return tokens


class TritonPythonModel:
    """One instance: a process that answers one request at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the time per token from config.pbtxt."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.generated_token_s = int(parameters["generated_token_us"]["string_value"]) / 1e6
        self.context_token_s = int(parameters["context_token_us"]["string_value"]) / 1e6

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests in their order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        started_s = time.monotonic()
        context = _scalar(request, "CONTEXT_TOKENS")
        generated = _scalar(request, "GENERATED_TOKENS")
        tokens = decode(prefill(context), generated)
        due_s = started_s + context * self.context_token_s + generated * self.generated_token_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("TOKENS", tokens)])


def _scalar(request: Any, name: str) -> int:
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0])
