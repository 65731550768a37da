"""Tests that a metric that is not in the catalogue, or breaks a convention, is found."""

from typing import get_args

import pytest
from metric_checks import breaches, unconventional
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slicewise.cluster.runtime.metric_catalogue import (
    FLAG,
    LABELS,
    MetricKind,
    MetricSpec,
    catalogue,
)
from slicewise.cluster.runtime.prometheus import family, single
from slicewise.launcher.process.metric_catalogue import METRICS as OF_LAUNCHER
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS as OF_DAEMON

WAITING = MetricSpec("slicewise_waiting_jobs", "gauge", "jobs", "Jobs.", ("tenant",))
TURNS = MetricSpec("slicewise_turns_total", "counter", "", "Turns.")
GOOD = catalogue(WAITING, TURNS)


def served(*more: Metric) -> list[Metric]:
    return [family(WAITING, [(("vision",), 2)]), single(TURNS, 0), *more]


def test_what_is_served_as_catalogued_is_no_breach() -> None:
    assert list(breaches(served(), GOOD)) == []


@pytest.mark.parametrize(
    ("families", "said"),
    [
        (served(GaugeMetricFamily("slicewise_x", "X.", value=1)), "not in the catalogue"),
        (served()[1:], "slicewise_waiting_jobs: not served"),
        ([*served()[:1], GaugeMetricFamily("slicewise_turns_total", "Turns.", 1)], "no counter"),
        ([*served()[:1], CounterMetricFamily("slicewise_turns", "Other.", 1)], "another text"),
        ([family(WAITING, []), single(TURNS, 0)], "without a value"),
    ],
)
def test_what_is_served_otherwise_is_found(families: list[Metric], said: str) -> None:
    assert any(said in one for one in breaches(families, GOOD))


def test_a_label_that_the_catalogue_does_not_have_is_found() -> None:
    odd = GaugeMetricFamily(WAITING.name, WAITING.text, labels=["tenant", "user"])
    odd.add_metric(["vision", "alice"], 1)
    assert list(breaches([odd, single(TURNS, 0)], GOOD)) == [
        "slicewise_waiting_jobs: labels tenant, user"
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (MetricSpec("slicewise_turn_ms", "gauge", "ms", "Time."), "no base unit"),
        (MetricSpec("slicewise_turns", "counter", "", "Turns."), "not that of its type"),
        (MetricSpec("slicewise_jobs_total", "gauge", "total", "Jobs."), "not that of its type"),
        (MetricSpec("slicewise_wait", "gauge", "seconds", "Wait."), "does not end with seconds"),
        (MetricSpec("slicewise_wait", "gauge", "", "Wait."), "no unit"),
        (MetricSpec("slicewise_jobs", "gauge", "jobs", "J.", ("user",)), "user has no bound"),
        (MetricSpec("jobs", "gauge", "jobs", "Jobs."), "no such name"),
        (MetricSpec("slicewise_jobs", "gauge", "jobs", ""), "says nothing"),
    ],
)
def test_what_breaks_a_convention_is_found(spec: MetricSpec, said: str) -> None:
    assert any(said in one for one in unconventional(spec.name, spec))


def test_no_two_programs_serve_the_same_metric_and_each_label_is_used() -> None:
    assert not OF_DAEMON.keys() & OF_LAUNCHER.keys()
    every = [*OF_DAEMON.values(), *OF_LAUNCHER.values()]
    assert {label for one in every for label in one.labels} == LABELS.keys()
    assert {one.kind for one in every} == set(get_args(MetricKind))
    assert any(one.unit == FLAG for one in every)
