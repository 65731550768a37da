"""Tests charts: gaps stay gaps, texts stay texts, marks are round, the table has the figures."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from slicewise.slurm_plugin.rules.pages.charts import (
    CHART_CSS,
    COLOURS,
    ChartSeries,
    TimeChart,
    chart_markup,
    time_marks,
    value_marks,
    value_text,
)

MIDNIGHT_S = 1_793_487_600  # 2026-11-01 in Berlin, which goes by winter time since a week.
HOUR_S = 3600


def chart(*series: ChartSeries, kind: str = "lines", step_s: int = HOUR_S) -> TimeChart:
    count = max((len(one.values) for one in series), default=3)
    times_s = tuple(MIDNIGHT_S + step_s * number for number in range(count))
    return TimeChart(
        title="Use",
        summary="What was used.",
        unit="slices",
        times_s=times_s,
        step_s=step_s,
        zone="Europe/Berlin",
        series=series,
        kind=kind,  # type: ignore[arg-type]
    )


def drawn(one: TimeChart) -> ET.Element:
    return ET.fromstring(chart_markup(one))  # noqa: S314 -- our own


def paths(one: TimeChart) -> list[str]:
    figure = drawn(one)
    svg = next(child for child in figure if child.tag == "svg")
    return [path.attrib["d"] for path in svg.iter("path")]


def rows(one: TimeChart) -> list[list[str]]:
    figure = drawn(one)
    return [[cell.text or "" for cell in row] for row in figure.iter("tr")]


def test_a_gap_ends_the_line_and_is_not_zero() -> None:
    (path,) = paths(chart(ChartSeries("a", (1.0, 2.0, None, 2.0, 1.0))))
    assert path.count("M") == 2
    assert len(re.findall(r"[ML]", path)) == 4


def test_a_value_between_two_gaps_is_a_dot() -> None:
    (path,) = paths(chart(ChartSeries("a", (None, 2.0, None))))
    assert path.endswith("h3")


def test_a_gap_in_one_part_is_a_gap_in_the_whole() -> None:
    """Else the parts above it would sink."""
    below, above = ChartSeries("a", (1.0, None, 1.0)), ChartSeries("b", (2.0, 2.0, 2.0))
    assert [path.count("Z") for path in paths(chart(below, above, kind="stacked"))] == [2, 2]


def test_parts_are_stacked_on_each_other() -> None:
    one, other = paths(
        chart(ChartSeries("a", (3.0,)), ChartSeries("b", (1.0,)), kind="stacked", step_s=60)
    )
    assert re.findall(r"[\d.]+", one)[:2][1] == re.findall(r"[\d.]+", other)[-1]


def test_level_stretches_take_two_points() -> None:
    (path,) = paths(chart(ChartSeries("a", (1.0,) * 500)))
    assert len(re.findall(r"[ML]", path)) == 2


def test_names_are_texts_whatever_is_in_them() -> None:
    hostile = "<script>alert(1)</script>\"'&\x00\u202e"
    one = chart(ChartSeries(hostile, (1.0, 2.0)))
    text = chart_markup(one)
    assert "<script" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;" in text
    assert [child.tag for child in drawn(one)] == ["figcaption", "svg", "ul", "details"]


def test_a_chart_without_values_says_so() -> None:
    text = chart_markup(chart(ChartSeries("a", (None, None))))
    assert "Nothing was recorded" in text
    assert "<svg" not in text


def test_it_has_no_styles_scripts_or_addresses_of_its_own() -> None:
    text = chart_markup(chart(ChartSeries("a", (1.0, 2.0))))
    assert not re.search(r"style=|<script|https?:|href|url\(| id=", text)


def test_each_colour_has_its_rules() -> None:
    for number in range(COLOURS):
        assert f".line.c{number} {{" in CHART_CSS
        assert f".area.c{number} {{" in CHART_CSS


def test_a_reader_without_eyes_gets_title_summary_and_names() -> None:
    figure = drawn(chart(ChartSeries("a", (1.0, 2.0))))
    svg = figure.find("svg")
    assert svg is not None
    assert [child.tag for child in svg][:2] == ["title", "desc"]
    assert svg.attrib["role"] == "img"


def test_the_table_has_the_figures_and_the_zone_s_times() -> None:
    assert rows(chart(ChartSeries("a", (1.0, None)), ChartSeries("b", (1250.0, 0.5)))) == [
        ["from", "a", "b"],
        ["2026-11-01 00:00", "1", "1,250"],
        ["2026-11-01 01:00", "–", "0.5"],
    ]


def test_a_long_table_has_means_without_the_gaps() -> None:
    found = rows(chart(ChartSeries("a", (1.0, 3.0, None, 5.0) * 31)))
    assert len(found) == 1 + 62
    assert [row[1] for row in found[1:3]] == ["2", "5"]


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0, 90, (0, 20, 40, 60, 80, 100)),
        (0, 0, (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (-30, 100, (-50, 0, 50, 100)),
        (0, 100, (0, 20, 40, 60, 80, 100)),
    ],
)
def test_marks_are_round_and_hold_all_values(
    low: float, high: float, marks: tuple[float, ...]
) -> None:
    assert value_marks(low, high) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1250.4, "1,250"), (12.5, "12.5"), (0.25, "0.25"), (3.0, "3"), (-0.0001, "0")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert value_text(value) == text


def test_marks_of_a_day_are_hours_of_the_zone() -> None:
    assert time_marks(MIDNIGHT_S, MIDNIGHT_S + 24 * HOUR_S, "Europe/Berlin") == [
        (MIDNIGHT_S + 3 * number * HOUR_S, text)
        for number, text in enumerate(
            ["11-01", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00"]
        )
    ]


def test_marks_of_a_day_on_which_clocks_change_are_round() -> None:
    october_25_s = MIDNIGHT_S - 7 * 24 * HOUR_S - HOUR_S
    found = time_marks(october_25_s, october_25_s + 25 * HOUR_S, "Europe/Berlin")
    assert [text for _, text in found] == [
        *("10-25", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00")
    ]
    assert found[1][0] - found[0][0] == 4 * HOUR_S


def test_marks_of_a_month_are_midnights_where_clocks_change() -> None:
    october_s = 1_790_805_600
    found = time_marks(october_s, MIDNIGHT_S, "Europe/Berlin")
    assert [text for _, text in found] == [
        *("10-01", "10-06", "10-11", "10-16", "10-21", "10-26", "10-31")
    ]
    # The 25th has 25 hours.
    assert found[5][0] - found[4][0] == 5 * 24 * HOUR_S + HOUR_S


@pytest.mark.parametrize(("unit", "texts"), [("replicas", {"0", "1", "2"}), ("slices", {"0.5"})])
def test_there_is_no_mark_of_half_a_replica(unit: str, texts: set[str]) -> None:
    shown = replace(chart(ChartSeries("ready", (0.0, 1.25, 2.0))), unit=unit)
    found = {text.text for text in drawn(shown).iter("text")}
    assert texts <= found
    assert ("0.5" in found) == (unit == "slices")
