"""Tests that what slicewise profile has measured is where a service begins to learn."""

import pytest
from builders.measurements import a_measurement
from builders.service_specs import a_spec

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.measurements import Measurement, TokenFigures
from slicewise.cluster.language.service import MOST_MEASURED
from slicewise.launcher.rules.autoscale.measured import measured_prior, measured_text

DAY = "2026-11-29"


def row(many: int, token_us: int = 30_000, mrps: int | None = None) -> Measurement:
    """So many requests at a time; each takes 200 tokens."""
    figures = TokenFigures(load="9+9", tpot_p50_us=token_us, ttft_p99_us=10 * token_us)
    mrps = int(1e9 * many / (200 * token_us)) if mrps is None else mrps
    return a_measurement(batch=many, throughput_mrps=mrps, tokens=figures)


def test_the_points_are_those_of_the_figures() -> None:
    prior = measured_prior(measured_text([row(8, 50_000), row(1)], DAY))
    assert prior is not None
    assert prior.source == "measured by slicewise profile on 2026-11-29"
    assert prior.curve.token == ((1.0, 0.03), (8.0, 0.05))
    assert [at for at, _ in prior.curve.service] == [1.0, 8.0]
    assert [each_s for _, each_s in prior.curve.service] == pytest.approx([6.0, 10.0], rel=0.01)
    assert prior.curve.steps == pytest.approx(200, rel=0.01)
    assert prior.curve.first_steps == pytest.approx(10, rel=0.01)


def test_what_could_not_be_served_or_makes_no_tokens_is_left_out() -> None:
    assert measured_text([row(1, mrps=0), a_measurement(), row(2, token_us=0, mrps=9)], DAY) == ""
    assert measured_text([row(1), row(2, mrps=0)], DAY).count(":") == 3


def test_times_never_fall_with_more_requests() -> None:
    prior = measured_prior(measured_text([row(1, 30_000), row(4, 29_000)], DAY))
    assert prior is not None
    assert prior.curve.token == ((1.0, 0.03), (4.0, 0.03))


def test_any_number_of_figures_is_a_value_that_a_service_may_have() -> None:
    text = measured_text([row(many, 999_999) for many in range(1, 100)], DAY)
    assert text.count(",") == MOST_MEASURED
    spec = a_spec(measured=text, concurrency="auto")
    assert all(len(line) <= 2048 for line in spec.directives())
    assert measured_prior(spec.measured or "") is not None


@pytest.mark.parametrize("text", ["", DAY, f"{DAY},1:2:3", f"{DAY},1:2:3:4;x", "a,1:2:3:4"])
def test_what_was_never_written_so_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="measured: a day and figures"):
        a_spec(measured=text)


@pytest.mark.parametrize("text", ["", DAY, f"{DAY},1:2:3", f"{DAY},1:0:3:4", f"{DAY},x:1:1:1"])
def test_a_text_that_a_script_has_all_the_same_says_nothing(text: str) -> None:
    assert measured_prior(text) is None
