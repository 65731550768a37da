"""How many replicas: up at once, down after the peak has passed, zero only after a keep-alive."""

import pytest

from cluster.service import ServiceSpec
from launcher.decide.autoscale import Peak, autoscale, first_peaks
from launcher.decide.gateway import Load


def spec(**change: object) -> ServiceSpec:
    values = {
        "name": "chat",
        "tenant": "vision",
        "model_repository": "/models",
        "model": "m",
        "profile": "1g.10gb",
        "max_replicas": 8,
        "concurrency": 2,
        "keep_alive_s": 10,
    }
    return ServiceSpec.model_validate(values | change)


def wanted(load: Load, peaks: tuple[Peak, ...] = (), now_s: float = 100.0, **change: object) -> int:
    return autoscale(spec(**change), peaks, load, 99, now_s)[1].wanted


@pytest.mark.parametrize(
    ("load", "change", "replicas"),
    [
        (Load(), {}, 0),
        (Load(held=1), {}, 1),
        (Load(in_flight=2), {}, 1),
        (Load(in_flight=2, queued=1), {}, 2),
        (Load(in_flight=2, queued=3, held=4), {}, 5),
        (Load(held=50), {}, 8),
        (Load(), {"min_replicas": 2}, 2),
        (Load(held=3), {"concurrency": 1}, 3),
        (Load(held=1), {"concurrency": 1024}, 1),
    ],
)
def test_load_over_concurrency_within_the_bounds(
    load: Load, change: dict[str, object], replicas: int
):
    assert wanted(load, **change) == replicas


def test_the_gateways_size_bounds_it_too():
    assert autoscale(spec(), (), Load(held=50), 3, 0.0)[1].wanted == 3


@pytest.mark.parametrize(("age_s", "replicas"), [(0.0, 5), (9.9, 5), (10.0, 0), (60.0, 0)])
def test_a_peak_counts_for_keep_alive_seconds(age_s: float, replicas: int):
    assert wanted(Load(), (Peak(100.0, 5),), 100.0 + age_s) == replicas


def test_it_falls_step_by_step_with_the_peaks():
    peaks: tuple[Peak, ...] = ()
    for now_s, load in ((0.0, 8), (4.0, 4), (8.0, 2)):
        peaks, _ = autoscale(spec(), peaks, Load(in_flight=load), 99, now_s)
    found = [
        autoscale(spec(), peaks, Load(), 99, now_s)[1].wanted for now_s in (9.0, 12.0, 16.0, 19.0)
    ]
    assert found == [4, 2, 1, 0]


def test_a_restart_does_not_shrink_what_runs():
    peaks = first_peaks(3, 100.0)
    assert wanted(Load(), peaks, 100.0) == 3
    assert wanted(Load(), peaks, 111.0) == 0


def test_without_keep_alive_only_now_counts():
    assert wanted(Load(), (Peak(99.5, 5),), keep_alive_s=0) == 0


@pytest.mark.parametrize(
    ("load", "peaks", "change", "said"),
    [
        (Load(2, 3), (), {}, "2 in flight + 3 waiting, 2 per replica: 3"),
        (Load(), (Peak(99.0, 4),), {}, "peak of the last 10 s 4"),
        (Load(held=50), (), {}, "25, bounded by max 8"),
        (Load(), (), {"min_replicas": 2}, "0, raised to min 2"),
    ],
)
def test_it_says_why(load: Load, peaks: tuple[Peak, ...], change: dict[str, object], said: str):
    assert said in autoscale(spec(**change), peaks, load, 99, 100.0)[1].reason
