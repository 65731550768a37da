"""Tests bars: as long as their values, names stay texts, the table has the figures."""

import xml.etree.ElementTree as ET

from slicewise.slurm_plugin.rules.pages.bars import BarChart, bars_markup
from slicewise.slurm_plugin.rules.pages.charts import ChartSeries


def chart(names: tuple[str, ...], *series: ChartSeries) -> ET.Element:
    made = BarChart("Waits", "Who waits.", "minutes", "tenant", names, series)
    return ET.fromstring(bars_markup(made))  # noqa: S314 -- our own


def widths(figure: ET.Element, colour: str) -> list[float]:
    return [
        float(one.attrib["width"]) for one in figure.iter("rect") if colour in one.attrib["class"]
    ]


def test_a_bar_is_as_long_as_its_value() -> None:
    figure = chart(("a", "b"), ChartSeries("was", (10.0, 20.0)), ChartSeries("now", (5.0, 0.0)))
    ten, twenty = widths(figure, "c0")
    five, nothing = widths(figure, "c1")
    assert (twenty, five, nothing) == (2 * ten, ten / 2, 0.0)


def test_what_is_not_known_has_no_bar_and_a_dash() -> None:
    figure = chart(("a", "b"), ChartSeries("was", (None, 20.0)))
    assert len(widths(figure, "c0")) == 1
    rows = [[cell.text for cell in row] for row in figure.iter("tr")]
    assert rows == [["tenant", "was"], ["a", "–"], ["b", "20"]]


def test_names_are_texts_and_short() -> None:
    name = "</svg><script>alert(1)</script>\u202e"
    made = bars_markup(BarChart("W", "w", "min", "t", (name,), (ChartSeries("was", (1.0,)),)))
    assert "<script>" not in made
    assert "\u202e" not in made
    assert "</svg><script>alert…" in "".join(ET.fromstring(made).itertext())  # noqa: S314


def test_without_names_it_says_so() -> None:
    figure = chart((), ChartSeries("was", ()))
    assert "nothing to draw" in "".join(figure.itertext())
    assert not list(figure.iter("svg"))


def test_only_zeros_are_drawn() -> None:
    assert widths(chart(("a",), ChartSeries("was", (0.0,))), "c0") == [0.0]
