"""Tests charts of history: spans, units, and what is left of a budget."""

from dataclasses import replace

import pytest
from stand_ins.web_answers import MONTH_S, NOW_S, Answers

from slicewise.cluster.rpc.history_messages import HistoryRequest
from slicewise.slurm_plugin.rules.pages.history import (
    RANGES,
    budget_chart,
    cluster_chart,
    history_span,
    service_charts,
    tenant_chart,
)

MADE = Answers(2)


def past(about: str, chosen: str = "hour"):
    since_s, until_s = history_span(chosen, NOW_S)
    return MADE.history(HistoryRequest(about=about, since_s=since_s, until_s=until_s))


@pytest.mark.parametrize(
    ("chosen", "span_s"),
    [("hour", 3600), ("day", 86_400), ("week", 7 * 86_400), ("month", 31 * 86_400)],
)
def test_each_range_has_its_span(chosen: str, span_s: int):
    since_s, until_s = history_span(chosen, NOW_S + 5)
    assert until_s - since_s == span_s
    assert chosen in dict(RANGES)


def test_who_looks_a_moment_later_asks_for_the_same():
    assert history_span("day", NOW_S + 1) == history_span("day", NOW_S + 59)


def test_a_range_that_is_none_is_the_first():
    assert history_span("century", NOW_S) == history_span(RANGES[0][0], NOW_S)


def test_the_cluster_s_states_are_stacked_in_slices():
    drawn = cluster_chart(past("cluster"), "UTC")
    assert drawn.count('class="area') >= 5
    assert "Slices by state: used 6 to 10.8" in drawn


def test_a_tenant_s_quota_and_use_are_lines():
    drawn = tenant_chart(past("vision"), "UTC")
    for name in ("nominal", "in use", "borrowed", "lent", "waiting"):
        assert f"<span>{name}</span>" in drawn
    assert "budget_left" not in drawn


def test_a_service_has_a_chart_for_each_unit():
    drawn = service_charts(past("vision/chat"), "UTC")
    assert len(drawn) == 4
    assert "ready 3 to" in drawn[0]
    assert ">ms<" in drawn[2]


def test_a_budget_is_drawn_from_its_period_s_begin_to_its_end_against_an_even_use():
    (budget, *_) = MADE.tenants(type("Asked", (), {"after": 0})).budgets
    drawn = budget_chart(past("vision", "month"), budget, "UTC")
    assert "left if used evenly" in drawn
    assert "11-01" in drawn
    assert "10-31" not in drawn
    assert budget.period_start_s == MONTH_S
    assert '<th scope="row">2026-11-01 00:00</th><td>995</td><td>992</td>' in drawn
    assert "left 404 to 1,000, at last 404" in drawn


def test_a_budget_without_periods_has_no_even_use():
    (budget, *_) = MADE.tenants(type("Asked", (), {"after": 0})).budgets
    once = replace(budget, period_start_s=None, resets_s=None)
    drawn = budget_chart(past("vision"), once, "UTC")
    assert "used evenly" not in drawn
    assert "<svg" in drawn


def test_without_any_figure_the_chart_says_so():
    answer = past("vision")
    empty = answer.model_copy(update={"times_s": (), "series": ()})
    assert "Nothing was recorded" in tenant_chart(empty, "UTC")
