"""Small recurrent nets in numpy: a GRU and an LSTM with one layer, and their gradients.

GRU: Cho et al. (EMNLP 2014), with the reset gate after the product, as cuDNN has it. LSTM:
Hochreiter and Schmidhuber (1997) with a forget gate (Gers et al. 2000).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from studies.autoscale.workload import Floats

State = tuple[Floats, ...]
"""What a cell remembers: rows of a batch, the output first."""
Weights = Mapping[str, Floats]
_FORGET_BIAS = 1.0


def copied(weights: Weights) -> Weights:
    """Return weights that stay as these are now."""
    return {name: value.copy() for name, value in weights.items()}


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 0.5 * (1.0 + np.tanh(0.5 * x))
    return found


@dataclass(frozen=True)
class Gradients:
    """What one step's outputs depend on: by the state before, and by three parts of the weights."""

    state: State
    of_input: Floats
    of_output: Floats


class RecurrentCell(Protocol):
    """One step of a recurrent net, and its gradients."""

    gates: int
    parts: int

    def forward(
        self, of_input: Floats, of_output: Floats, state: State
    ) -> tuple[State, Sequence[Floats]]:
        """Return the next state, and what ``backward`` needs.

        ``of_input`` and ``of_output`` are the weighted sums of the step's input and of the last
        output, all gates side by side.
        """
        ...

    def backward(self, grads: State, kept: Sequence[Floats]) -> Gradients:
        """Return the gradients by the state before and both sums, from those by the next state."""
        ...


class GruCell:
    """Gates: update, reset, and the candidate. State: the output."""

    gates = 3
    parts = 1

    def forward(
        self, of_input: Floats, of_output: Floats, state: State
    ) -> tuple[State, Sequence[Floats]]:
        """Mix the last output with the candidate."""
        (output,) = state
        size = output.shape[1]
        both = _sigmoid(of_input[:, : 2 * size] + of_output[:, : 2 * size])
        update, reset = both[:, :size], both[:, size:]
        recalled = of_output[:, 2 * size :]
        candidate = np.tanh(of_input[:, 2 * size :] + reset * recalled)
        now = candidate + update * (output - candidate)
        return (now,), (output, update, reset, recalled, candidate)

    def backward(self, grads: State, kept: Sequence[Floats]) -> Gradients:
        """Go back through the mix."""
        output, update, reset, recalled, candidate = kept
        (grad,) = grads
        of_candidate = grad * (1 - update) * (1 - candidate**2)
        of_update = grad * (output - candidate) * update * (1 - update)
        of_reset = of_candidate * recalled * reset * (1 - reset)
        return Gradients(
            (grad * update,),
            np.hstack((of_update, of_reset, of_candidate)),
            np.hstack((of_update, of_reset, of_candidate * reset)),
        )


class LstmCell:
    """Gates: input, forget, output, and the candidate. State: the output, and the memory."""

    gates = 4
    parts = 2

    def forward(
        self, of_input: Floats, of_output: Floats, state: State
    ) -> tuple[State, Sequence[Floats]]:
        """Forget a part of the memory, add a part of the candidate, show a part of it."""
        output, memory = state
        size = output.shape[1]
        sums = of_input + of_output
        adds, keeps, shows = (
            _sigmoid(sums[:, :size]),
            _sigmoid(sums[:, size : 2 * size] + _FORGET_BIAS),
            _sigmoid(sums[:, 2 * size : 3 * size]),
        )
        candidate = np.tanh(sums[:, 3 * size :])
        now = keeps * memory + adds * candidate
        shown = np.tanh(now)
        return (shows * shown, now), (memory, adds, keeps, shows, candidate, shown)

    def backward(self, grads: State, kept: Sequence[Floats]) -> Gradients:
        """Go back through the output and the memory."""
        memory, adds, keeps, shows, candidate, shown = kept
        of_output, of_memory = grads
        of_now = of_memory + of_output * shows * (1 - shown**2)
        sums = np.hstack(
            (
                of_now * candidate * adds * (1 - adds),
                of_now * memory * keeps * (1 - keeps),
                of_output * shown * shows * (1 - shows),
                of_now * adds * (1 - candidate**2),
            )
        )
        return Gradients((np.zeros_like(of_output), of_now * keeps), sums, sums)


def drawn(
    cell: RecurrentCell, inputs: int, size: int, outputs: int, rng: np.random.Generator
) -> Weights:
    """Draw first weights, uniform as usual for such nets; the outputs begin at 0."""
    bound = size**-0.5
    wide = cell.gates * size
    return {
        "input": rng.uniform(-bound, bound, (inputs, wide)),
        "output": rng.uniform(-bound, bound, (size, wide)),
        "bias": np.zeros(wide),
        "output_bias": np.zeros(wide),
        "head": np.zeros((size, outputs)),
        "head_bias": np.zeros(outputs),
    }


def at_rest(cell: RecurrentCell, rows: int, size: int) -> State:
    """Return the state before the first step."""
    return tuple(np.zeros((rows, size)) for _ in range(cell.parts))


def step(
    cell: RecurrentCell, weights: Weights, x: Floats, state: State
) -> tuple[State, Sequence[Floats]]:
    """Take one step with one row of inputs a sequence."""
    return cell.forward(
        x @ weights["input"] + weights["bias"],
        state[0] @ weights["output"] + weights["output_bias"],
        state,
    )


def said(weights: Weights, state: State) -> Floats:
    """Return the outputs that follow from a state."""
    found: Floats = state[0] @ weights["head"] + weights["head_bias"]
    return found


@dataclass(frozen=True)
class Passed:
    """A forward pass: states of all steps, before the first one too, and what was kept of each."""

    x: Floats
    states: Sequence[State]
    kept: Sequence[Sequence[Floats]]
    outputs: Floats


def forward(cell: RecurrentCell, weights: Weights, x: Floats) -> Passed:
    """Pass sequences (step, sequence, input) through the net; outputs are in the same order."""
    states, kept = [at_rest(cell, x.shape[1], weights["output"].shape[0])], []
    for now in x:
        state, keeps = step(cell, weights, now, states[-1])
        states.append(state)
        kept.append(keeps)
    return Passed(x, states, kept, np.stack([said(weights, state) for state in states[1:]]))


def backward(cell: RecurrentCell, weights: Weights, passed: Passed, grads: Floats) -> Weights:
    """Return the gradients of all weights from those of the outputs."""
    found = {name: np.zeros_like(value) for name, value in weights.items()}
    state = tuple(np.zeros_like(part) for part in passed.states[0])
    for number in range(len(passed.kept) - 1, -1, -1):
        output, before = passed.states[number + 1][0], passed.states[number][0]
        found["head"] += output.T @ grads[number]
        found["head_bias"] += grads[number].sum(axis=0)
        first = state[0] + grads[number] @ weights["head"].T
        by = cell.backward((first, *state[1:]), passed.kept[number])
        found["input"] += passed.x[number].T @ by.of_input
        found["bias"] += by.of_input.sum(axis=0)
        found["output"] += before.T @ by.of_output
        found["output_bias"] += by.of_output.sum(axis=0)
        state = (by.state[0] + by.of_output @ weights["output"].T, *by.state[1:])
    return found
