"""A small net of two layers in numpy, and its gradients."""

from dataclasses import dataclass

import numpy as np

from studies.autoscale.workload import Floats
from studies.forecasters.recurrent import Weights


def drawn(inputs: int, units: int, rng: np.random.Generator) -> Weights:
    """Draw first weights, uniform as usual for such nets; the output begins at 0."""
    bound = inputs**-0.5
    return {
        "input": rng.uniform(-bound, bound, (inputs, units)),
        "bias": np.zeros(units),
        "head": np.zeros(units),
        "head_bias": np.zeros(1),
    }


@dataclass(frozen=True)
class Passed:
    """A forward pass: rows of inputs, what the units said, and one output a row."""

    x: Floats
    units: Floats
    outputs: Floats


def forward(weights: Weights, x: Floats) -> Passed:
    """Pass inputs, whose last axis is the input's own, through the net."""
    units = np.tanh(x @ weights["input"] + weights["bias"])
    return Passed(x, units, units @ weights["head"] + weights["head_bias"][0])


def backward(weights: Weights, passed: Passed, grads: Floats) -> Weights:
    """Return the gradients of all weights from those of the outputs."""
    of_units = grads[..., None] * weights["head"] * (1.0 - passed.units**2)
    flat, size = of_units.reshape(-1, of_units.shape[-1]), passed.x.shape[-1]
    return {
        "input": passed.x.reshape(-1, size).T @ flat,
        "bias": flat.sum(axis=0),
        "head": passed.units.reshape(-1, flat.shape[1]).T @ grads.reshape(-1),
        "head_bias": np.array([grads.sum()]),
    }
