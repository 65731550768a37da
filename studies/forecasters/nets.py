"""Forecasters that are trained: a GRU or an LSTM of 16 units, for two quantiles at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from studies.autoscale.workload import Floats
from studies.forecasters import recurrent
from studies.forecasters.errors import surprises
from studies.forecasters.forecaster import NEEDED, LoadForecast
from studies.forecasters.recurrent import Passed, RecurrentCell, Weights, copied
from studies.forecasters.series import STEP_S, LoadSeries, peaks_after

_UNITS = 16
_STEPS, _UNJUDGED = 80, 16
"""Steps in a sequence, more than five minutes, and those at its beginning without a loss."""
_SEQUENCES = 64
_RATE = 0.005
_UPDATES, _EACH = 400, 20
"""Updates at most, and those between two looks at the held-out part."""
_PATIENCE = 6
"""Looks without a better one after which training ends."""
_HELD_OUT = 0.15
"""Last share of the trained part by which the weights are chosen."""
_FADES_S = (30.0, 120.0, 480.0)
"""Averages of arrivals that the product has; the nets get them, too."""
_SHARES = np.array((0.5, NEEDED))
_MOST = 4.0
"""Deviations from the trained part's mean at which inputs are cut: loads that were never seen."""


@dataclass(frozen=True)
class Scale:
    """Means and deviations of the inputs in the trained part."""

    mean: Floats
    deviation: Floats

    def scaled(self, inputs: Floats) -> Floats:
        """Return inputs of mean 0 and deviation 1, within bounds."""
        found: Floats = np.clip((inputs - self.mean) / self.deviation, -_MOST, _MOST)
        return found


class Averages:
    """Arrivals a second of the last step, and their averages of several spans."""

    def __init__(self) -> None:
        self._fades = np.exp(-STEP_S / np.array(_FADES_S))
        self._rates = np.zeros(len(_FADES_S))

    def inputs(self, load: float, arrived: float) -> Floats:
        """Learn a step, and return the net's inputs: square roots, which make bursts alike."""
        rate = arrived / STEP_S
        self._rates = self._fades * self._rates + (1 - self._fades) * rate
        found: Floats = np.sqrt(np.array((load, rate, *self._rates)) + 0.375)
        return found


def _inputs(series: LoadSeries) -> Floats:
    sums = series.arrived.cumsum()[::STEP_S]
    averages = Averages()
    pairs = zip(series.load[::STEP_S].tolist(), np.diff(sums, prepend=0).tolist(), strict=True)
    return np.stack([averages.inputs(load, arrived) for load, arrived in pairs])


def _targets(series: LoadSeries) -> Floats:
    """Return how far the peak will be from the load now; the net learns that."""
    peaks = peaks_after(series.load, series.horizon_s)
    return surprises(series.load, peaks)[::STEP_S]


def _loss(outputs: Floats, targets: Floats) -> tuple[float, Floats]:
    """Return the pinball losses' mean and its gradients."""
    off = targets[..., None] - outputs
    grads = np.where(off > 0, -_SHARES, 1 - _SHARES) / off.size
    return float((-grads * off).sum()), grads


@dataclass
class Adam:
    """Kingma and Ba's step (ICLR 2015), with their constants."""

    weights: Mapping[str, Floats]
    rate: float = _RATE
    steps: int = 0
    means: dict[str, Floats] = field(default_factory=dict)
    squares: dict[str, Floats] = field(default_factory=dict)

    def update(self, grads: Weights) -> None:
        """Move the weights, in place."""
        self.steps += 1
        norm = float(np.sqrt(sum(float((grad**2).sum()) for grad in grads.values())))
        for name, grad in grads.items():
            cut = grad / max(1.0, norm)
            mean = 0.9 * self.means.get(name, 0.0) + 0.1 * cut
            square = 0.999 * self.squares.get(name, 0.0) + 0.001 * cut**2
            self.means[name], self.squares[name] = mean, square
            scaled = mean / (1 - 0.9**self.steps)
            root = np.sqrt(square / (1 - 0.999**self.steps)) + 1e-8
            self.weights[name][...] -= self.rate * scaled / root


class RecurrentNet:
    """A small net that says how far the peak will be from the load now, in two quantiles."""

    def __init__(self, cell: RecurrentCell) -> None:
        self._cell = cell
        self._weights: Weights = {}
        self._scale = Scale(np.zeros(1), np.ones(1))
        self._averages = Averages()
        self._state = recurrent.at_rest(cell, 1, _UNITS)
        self._arrived = 0
        self._next_s: int | None = None
        self._ahead = (0.0, 0.0)

    def fit(self, trained: LoadSeries, rng: np.random.Generator) -> None:
        """Train on sequences from anywhere; keep the weights that do best in the held-out part."""
        inputs, targets = _inputs(trained), _targets(trained)
        held_out = int((1 - _HELD_OUT) * len(inputs))
        self._scale = Scale(inputs.mean(axis=0), inputs.std(axis=0) + 1e-3)
        scaled = self._scale.scaled(inputs)
        weights = recurrent.drawn(self._cell, scaled.shape[1], _UNITS, _SHARES.size, rng)
        adam = Adam(weights)
        best, self._weights, since = np.inf, copied(weights), 0
        for number in range(_UPDATES):
            begins = rng.integers(0, max(1, held_out - _STEPS), _SEQUENCES)
            steps = begins + np.arange(_STEPS)[:, None]
            adam.update(self._gradients(weights, scaled[steps], targets[steps]))
            if (number + 1) % _EACH:
                continue
            loss = self._held_out(weights, scaled[held_out:], targets[held_out:])
            since = 0 if loss < best else since + 1
            if loss < best:
                best, self._weights = loss, copied(weights)
            if since == _PATIENCE:
                break

    def _gradients(self, weights: Weights, inputs: Floats, targets: Floats) -> Weights:
        passed: Passed = recurrent.forward(self._cell, weights, inputs)
        grads = np.zeros_like(passed.outputs)
        _, grads[_UNJUDGED:] = _loss(passed.outputs[_UNJUDGED:], targets[_UNJUDGED:])
        return recurrent.backward(self._cell, weights, passed, grads)

    def _held_out(self, weights: Weights, inputs: Floats, targets: Floats) -> float:
        outputs = recurrent.forward(self._cell, weights, inputs[:, None, :]).outputs
        return _loss(outputs[_UNJUDGED:, 0], targets[_UNJUDGED:])[0]

    def look(self, at_s: int, load: int, arrived: int) -> LoadForecast:
        """Take a step of the net each four seconds; between, what it said goes on from the load."""
        self._arrived += arrived
        if self._next_s is None or at_s >= self._next_s:
            self._next_s = at_s + STEP_S
            inputs = self._scale.scaled(self._averages.inputs(load, self._arrived))
            self._arrived = 0
            found = recurrent.step(self._cell, self._weights, inputs[None], self._state)
            self._state = found[0]
            middle, high = recurrent.said(self._weights, self._state)[0]
            self._ahead = float(middle), float(max(middle, high))
        middle, high = (_came(load, ahead) for ahead in self._ahead)
        return LoadForecast(middle, high)


def _came(load: float, ahead: float) -> float:
    """Return the requests that are so far from the load, in deviations."""
    return float(max(0.0, max(0.0, (load + 0.375) ** 0.5 + ahead / 2) ** 2 - 0.375))
