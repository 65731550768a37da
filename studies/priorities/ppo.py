"""A small net that scores each waiting job, trained by PPO on the light scheduler.

After RLScheduler (Zhang et al., SC 2020): one net sees each job by itself, and a softmax over the
jobs chooses the one that goes first. Here it adds to what smallest area first says, so that it
begins there; and what waiting costs is told at each step, not only at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from studies.autoscale.workload import Floats
from studies.forecasters.nets import Adam
from studies.forecasters.recurrent import Weights, copied
from studies.priorities import nets
from studies.priorities.light import LightPool, in_order_of, judged
from studies.priorities.linear import SAF_WEIGHTS, features
from studies.priorities.loads import Numbers, Truths, Window
from studies.priorities.queues import Queue
from studies.priorities.rules import area, saf

_SEEN = 64
"""Jobs among which one is chosen: those with the highest scores."""
_UNITS = 16
_ITERATIONS, _EPISODES = 20, 4
_EPOCHS, _BATCH = 3, 512
_CLIP = 0.2
_FADES, _LAMBDA = 0.995, 0.95
_ENTROPY = 0.003
_RATE = 0.003
_LOW = -1e9
"""Score of a place in which no job is."""


def _inputs(queue: Queue) -> Floats:
    """A job's features, and what is the same for all: the free share, and how many wait."""
    size = queue.gpus.size
    shared = np.array((queue.free, np.log1p(size) / 5.0))
    return np.hstack((features(queue), np.tile(shared, (size, 1))))


_WIDTH = len(SAF_WEIGHTS) + 2
_BASE = np.array((*SAF_WEIGHTS, 0.0, 0.0))
_STATE = 4


def _state(queue: Queue) -> Floats:
    """What the value depends on: how many wait, how large they are, how short, what is free."""
    hours = area(queue).sum() / 3600.0
    rates = (3600.0 / queue.limit_s).sum()
    return np.array((np.log1p(queue.gpus.size), np.log1p(hours), np.log1p(rates), queue.free))


@dataclass(frozen=True)
class NetPolicy:
    """Scores jobs by smallest area first and what a net adds."""

    weights: Weights = field(hash=False)

    def __call__(self, queue: Queue) -> Floats:
        """The scores."""
        return scores(self.weights, _inputs(queue)).outputs


def scores(weights: Weights, inputs: Floats) -> nets.Passed:
    """The net's outputs plus smallest area first's."""
    passed = nets.forward(weights, inputs)
    return nets.Passed(inputs, passed.units, passed.outputs + inputs @ _BASE)


@dataclass
class Steps:
    """What was seen, done and paid in episodes, one place for each step.

    Attributes:
        inputs: of the jobs among which was chosen; ``there`` says in which places one is.
        chance: log of the probability with which the choice was made.
        gain: how much better than expected it went; ``worth`` what the value should have said.
    """

    inputs: list[Floats] = field(default_factory=list)
    there: list[int] = field(default_factory=list)
    choice: list[int] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)
    states: list[Floats] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    worth: list[float] = field(default_factory=list)


class _Episode:
    """One window: draws who goes first, and notes it."""

    def __init__(self, weights: Weights, rng: np.random.Generator, steps: Steps) -> None:
        self._weights, self._rng, self._steps = weights, rng, steps
        self.costs: list[float] = []

    def order(self, queue: Queue, cost: float) -> list[int]:
        """The one that was drawn, then the others by their scores."""
        inputs = _inputs(queue)
        said = scores(self._weights, inputs).outputs
        ranked: list[int] = np.argsort(-said, kind="stable").tolist()
        if len(ranked) == 1:
            return ranked
        seen = ranked[:_SEEN]
        logs = _log_softmax(said[seen])
        choice = int(self._rng.choice(len(seen), p=np.exp(logs)))
        steps = self._steps
        padded = np.zeros((_SEEN, _WIDTH))
        padded[: len(seen)] = inputs[seen]
        steps.inputs.append(padded)
        steps.there.append(len(seen))
        steps.choice.append(choice)
        steps.chance.append(float(logs[choice]))
        steps.states.append(_state(queue))
        self.costs.append(cost)
        return [ranked[choice], *ranked[:choice], *ranked[choice + 1 :]]


def _log_softmax(values: Floats) -> Floats:
    top = values.max(axis=-1, keepdims=True)
    found: Floats = values - top - np.log(np.exp(values - top).sum(axis=-1, keepdims=True))
    return found


def fitted(windows: Sequence[Window], seed: int) -> NetPolicy:
    """Train on windows drawn by the seed; a window's costs count beside smallest area first's."""
    rng = np.random.default_rng(seed)
    weights, value = nets.drawn(_WIDTH, _UNITS, rng), nets.drawn(_STATE, _UNITS, rng)
    adam, value_adam = Adam(weights, _RATE), Adam(value, _RATE)
    best, kept = np.inf, copied(weights)
    beside = [_cost(one) for one in windows]
    for _ in range(_ITERATIONS):
        steps = Steps()
        for nth in rng.integers(0, len(windows), _EPISODES).tolist():
            _play(windows[nth], beside[nth], (weights, value), rng, steps)
        if steps.choice:
            _learn(steps, weights, value, (adam, value_adam), rng)
        found = judged(windows, NetPolicy(weights))
        if found < best:
            best, kept = found, copied(weights)
    return NetPolicy(kept)


def _cost(window: Window) -> float:
    """What waiting costs under smallest area first; at least one run's length."""
    pool = LightPool(window, in_order_of(saf))
    pool.run()
    return max(1.0, pool.cost)


def _play(
    window: Window,
    beside: float,
    both: tuple[Weights, Weights],
    rng: np.random.Generator,
    steps: Steps,
) -> None:
    """Play one window, and note what its steps were worth (generalised advantages)."""
    weights, value = both
    first = len(steps.choice)
    episode = _Episode(weights, rng, steps)
    pool = LightPool(window, episode.order)
    pool.run()
    if not episode.costs:
        return
    paid = -100.0 * np.diff(np.array((*episode.costs, pool.cost))) / beside
    expected = nets.forward(value, np.stack(steps.states[first:])).outputs
    following = np.append(expected[1:], 0.0)
    errors = paid + _FADES * following - expected
    gains, gain = np.zeros(errors.size), 0.0
    for nth in range(errors.size - 1, -1, -1):
        gain = errors[nth] + _FADES * _LAMBDA * gain
        gains[nth] = gain
    steps.gain += gains.tolist()
    steps.worth += (gains + expected).tolist()


def _learn(
    steps: Steps,
    weights: Weights,
    value: Weights,
    adams: tuple[Adam, Adam],
    rng: np.random.Generator,
) -> None:
    """Take the steps of some epochs."""
    inputs, states = np.stack(steps.inputs), np.stack(steps.states)
    there = np.arange(_SEEN) < np.array(steps.there)[:, None]
    choice, chance = np.array(steps.choice), np.array(steps.chance)
    gain, worth = np.array(steps.gain), np.array(steps.worth)
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    for _ in range(_EPOCHS):
        mixed = rng.permutation(choice.size)
        for at in np.array_split(mixed, max(1, choice.size // _BATCH)):
            passed = scores(weights, inputs[at])
            grads = choice_gradients(passed.outputs, there[at], choice[at], chance[at], gain[at])
            adams[0].update(nets.backward(weights, passed, grads))
            said = nets.forward(value, states[at])
            adams[1].update(nets.backward(value, said, (said.outputs - worth[at]) / at.size))


def choice_gradients(
    said: Floats, there: Truths, choice: Numbers, chance: Floats, gain: Floats
) -> Floats:
    """Gradients of PPO's clipped loss by the scores, its bonus for entropy included."""
    logs = _log_softmax(np.where(there, said, _LOW))
    odds = np.exp(logs)
    rows = np.arange(choice.size)
    ratio = np.exp(logs[rows, choice] - chance)
    is_cut = np.where(gain > 0, ratio > 1 + _CLIP, ratio < 1 - _CLIP)
    of_log = np.where(is_cut, 0.0, -ratio * gain)
    grads = -of_log[:, None] * odds
    grads[rows, choice] += of_log
    surprise = -(odds * np.where(there, logs, 0.0)).sum(axis=1, keepdims=True)
    grads += _ENTROPY * odds * (np.where(there, logs, 0.0) + surprise)
    found: Floats = grads / choice.size
    return found
