"""Tests the recurrent nets of the forecasters: gradients, and that training learns something."""

import numpy as np
import pytest

from studies.forecasters import nets, recurrent
from studies.forecasters.nets import RecurrentNet
from studies.forecasters.recurrent import GruCell, LstmCell, RecurrentCell
from studies.forecasters.series import LoadSeries

CELLS = (GruCell(), LstmCell())


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_those_of_differences(cell: RecurrentCell):
    rng = np.random.default_rng(3)
    weights = {
        name: value + rng.normal(0, 0.3, value.shape)
        for name, value in recurrent.drawn(cell, 3, 4, 2, rng).items()
    }
    x, by = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 2))
    grads = recurrent.backward(cell, weights, recurrent.forward(cell, weights, x), by)
    for name, value in weights.items():
        place = tuple(int(rng.integers(size)) for size in value.shape)
        losses = []
        for change in (1e-6, -1e-6):
            value[place] += change
            losses.append(float((recurrent.forward(cell, weights, x).outputs * by).sum()))
            value[place] -= change
        assert grads[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4), name


@pytest.mark.parametrize("cell", CELLS)
def test_steps_one_after_the_other_are_a_pass(cell: RecurrentCell):
    rng = np.random.default_rng(4)
    weights = recurrent.drawn(cell, 3, 4, 2, rng)
    x = rng.normal(size=(6, 1, 3))
    state = recurrent.at_rest(cell, 1, 4)
    for now in x:
        state, _ = recurrent.step(cell, weights, now, state)
    passed = recurrent.forward(cell, weights, x)
    assert recurrent.said(weights, state) == pytest.approx(passed.outputs[-1])


@pytest.mark.parametrize("cell", CELLS)
def test_a_net_learns_that_bursts_follow_a_rhythm(cell: RecurrentCell, monkeypatch):
    monkeypatch.setattr(nets, "_UPDATES", 60)
    monkeypatch.setattr(nets, "_SEQUENCES", 16)
    load = np.array([40.0 if at_s % 80 >= 40 else 5.0 for at_s in range(2400)])
    net = RecurrentNet(cell)
    net.fit(
        LoadSeries(load, np.zeros(load.size), 16.0, 3600, load.size, unit=2),
        np.random.default_rng(5),
    )
    said = [net.look(at_s, int(load[at_s]), 0).middle for at_s in range(1600)]
    # 24 s before the burst the load is as it was ten seconds before that.
    assert np.mean(said[1540:1600:80]) < 60
    before, quiet = said[1520 + 30], said[1520 + 8]
    assert before > quiet + 10


def test_the_loss_is_pinball_s_and_its_gradient_points_to_the_quantile():
    outputs, targets = np.array([[0.0, 0.0]]), np.array([2.0])
    loss, grads = nets._loss(outputs, targets)
    assert loss == pytest.approx((0.5 * 2 + 0.95 * 2) / 2)
    assert grads.tolist() == [[-0.25, -0.475]]
