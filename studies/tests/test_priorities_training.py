"""Tests that policies of priority learn: gradients by differences, and what a search finds."""

import numpy as np
import pytest

from studies.priorities import linear, nets, ppo
from studies.priorities.light import judged
from studies.priorities.linear import SAF_WEIGHTS, LinearPolicy
from studies.priorities.loads import Window
from studies.priorities.ppo import NetPolicy
from studies.priorities.rules import saf


def misled_window() -> Window:
    """Smallest area first is wrong here: who asks for little time runs for long."""
    size = 40
    rng = np.random.default_rng(1)
    is_long = rng.random(size) < 0.5
    run_s = np.where(is_long, 2000.0, 50.0)
    return Window(
        submit_s=np.sort(rng.uniform(0, 1000, size)),
        gpus=np.where(is_long, 1.0, 2.0),
        limit_s=np.full(size, 2500.0),
        run_s=run_s,
        tenant=np.zeros(size, dtype=np.int64),
        counts=np.ones(size, dtype=bool),
        own=np.array([4.0]),
        begin_s=0.0,
    )


def test_gradients_are_those_of_differences() -> None:
    rng = np.random.default_rng(3)
    weights = {
        name: value + rng.normal(0, 0.3, value.shape)
        for name, value in nets.drawn(5, 4, rng).items()
    }
    x, by = rng.normal(size=(6, 3, 5)), rng.normal(size=(6, 3))
    grads = nets.backward(weights, nets.forward(weights, x), by)
    for name, value in weights.items():
        place = tuple(int(rng.integers(size)) for size in value.shape)
        losses = []
        for change in (1e-6, -1e-6):
            value[place] += change
            losses.append(float((nets.forward(weights, x).outputs * by).sum()))
            value[place] -= change
        assert grads[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4), name


def ppo_loss(said, there, choice, chance, gain) -> float:
    """PPO's clipped loss with the bonus for entropy, as its paper has it."""
    logs = ppo._log_softmax(np.where(there, said, ppo._LOW))
    rows = np.arange(choice.size)
    ratio = np.exp(logs[rows, choice] - chance)
    gained = np.minimum(ratio * gain, np.clip(ratio, 1 - ppo._CLIP, 1 + ppo._CLIP) * gain)
    surprise = -(np.exp(logs) * np.where(there, logs, 0.0)).sum(axis=1)
    return float(-(gained + ppo._ENTROPY * surprise).mean())


def test_gradients_of_the_clipped_loss_are_those_of_differences() -> None:
    rng = np.random.default_rng(4)
    said, gain = rng.normal(size=(8, 5)), rng.normal(size=8)
    there = np.arange(5) < rng.integers(2, 6, 8)[:, None]
    choice = np.zeros(8, dtype=np.int64)
    chance = np.log(rng.uniform(0.1, 0.9, 8))
    grads = ppo.choice_gradients(said, there, choice, chance, gain)
    for place in np.ndindex(said.shape):
        losses = []
        for change in (1e-6, -1e-6):
            said[place] += change
            losses.append(ppo_loss(said, there, choice, chance, gain))
            said[place] -= change
        assert grads[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-3, abs=1e-8)


def test_a_linear_policy_begins_at_smallest_area_first_and_learns(monkeypatch) -> None:
    monkeypatch.setattr(linear, "_GENERATIONS", 6)
    monkeypatch.setattr(linear, "_STEP", 1.0)
    windows = [misled_window()]
    before = judged(windows, saf)
    assert judged(windows, LinearPolicy(SAF_WEIGHTS)) == pytest.approx(before)
    found = linear.fitted(windows, 7)
    assert judged(windows, found) < before - 0.1
    assert linear.fitted(windows, 7) == found


def test_a_net_begins_at_smallest_area_first_and_learns(monkeypatch) -> None:
    monkeypatch.setattr(ppo, "_ITERATIONS", 8)
    monkeypatch.setattr(ppo, "_RATE", 0.1)
    windows = [misled_window()]
    before = judged(windows, saf)
    fresh = nets.drawn(ppo._WIDTH, ppo._UNITS, np.random.default_rng(1))
    assert judged(windows, NetPolicy(fresh)) == pytest.approx(before)
    assert judged(windows, ppo.fitted(windows, 7)) < before - 0.1
