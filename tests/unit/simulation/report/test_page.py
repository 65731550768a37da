"""Tests the page of simulated runs: one file that asks for nothing, and obeys no name."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from simulation_figures import CHANGED, END_S, HOSTILE, PRESENT, SERVICE, result, tenant

from slicewise.simulation.report.page import DRAWN, simulation_html
from slicewise.simulation.rules.report.figure_rows import node_rows
from slicewise.simulation.rules.runs.run_figures import (
    FailureFigures,
    RepartitionFigures,
    SimulationResult,
)


class Page(HTMLParser):
    """Tags that are open, attributes, texts; fails on tags that end out of order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page(of: SimulationResult, *changes: str) -> str:
    return simulation_html(of, changes, "Europe/Berlin", END_S)


@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize("offsets", [1, 4])
def test_the_page_is_whole_asks_for_nothing_and_obeys_no_name(compared: bool, offsets: int):
    of = result(compared=compared, offsets=offsets)
    of = replace(of, cluster=HOSTILE, present=replace(PRESENT, services=(SERVICE,)))
    text = page(of, f"{HOSTILE}: removed")
    made = Page(text)
    assert made.open == []
    assert made.tags.isdisjoint({"script", "img", "link", "iframe", "object", "base", "form", "a"})
    assert made.attributes.isdisjoint({"src", "href", "srcset", "data", "action", "style"})
    assert not any(name.startswith("on") for name in made.attributes)
    assert not re.search(r"https?:|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "\u202e" not in text
    assert "49" not in re.findall(r"\d+", "".join(made.texts))
    assert "&lt;script&gt;alert(1)" in text


def test_it_says_what_the_terminal_says():
    text = page(result(), "vision: nominal 120 slices (was 100 slices)")
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))
    for words in (
        "2026-10-01 00:00 to 2026-10-30 23:00, Europe/Berlin",
        "smaller differences say nothing",
        "vision: nominal 120 slices (was 100 slices)",
        "slices in use 70.0 % 78.0 % +8.0 points ▲ better",
        "1 tenant gains, 1 loses, 1 waits as before.",
        "4 min → 15 min +11 min (+275 %) 36 min → 2.2 h 100.0 → 80.0 0 → 12 ▼ loses",
        "12 jobs of more GPUs than the cluster has were left out.",
    ):
        assert words in shown


def test_the_present_alone_is_not_compared():
    text = page(result(compared=False))
    assert "The present policy" in text
    assert "What changes" not in text
    assert "changed</span>" not in text
    assert "better" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)


def test_drawings_are_of_both_policies():
    text = page(result())
    for title in ("Slices in use", "Slices that jobs wait for", "Slices on loan"):
        assert f"<figcaption>{title}</figcaption>" in text
    assert text.count("<span>changed</span>") == 4
    assert "a line may jump" not in text
    assert "Each of the 4 parts begins for itself" in page(result(offsets=4))
    assert "In the mean, 70.0 % present and 78.0 % changed of all slices were held." in text


def test_a_run_that_ended_earlier_has_gaps_and_one_without_steps_no_drawing():
    shorter = replace(CHANGED, steps=CHANGED.steps[:100])
    assert page(replace(result(), changed=shorter))
    without = replace(result(), present=replace(PRESENT, steps=()))
    assert "Slices on loan" not in page(without)


def test_only_those_whose_jobs_waited_most_are_drawn():
    many = tuple(tenant(f"t{number}", 60.0 * number) for number in range(DRAWN + 5))
    text = page(replace(result(compared=False), present=replace(PRESENT, tenants=many)))
    assert text.count("<rect") == DRAWN
    assert "5 more are in the table" in text
    assert text.count('<tr><th scope="row">t0</th>') == 1


def test_what_became_of_nodes_is_shown():
    repartitions, failures = (
        RepartitionFigures(36, 2, 28_080.0),
        FailureFigures(1, 6, 108_000.0, 3600.0),
    )
    present = replace(PRESENT, repartitions=repartitions, failures=failures)
    changed = replace(CHANGED, failures=failures)
    rows = {
        one.words: (one.of.present, one.of.changed)
        for one in node_rows(replace(result(), present=present, changed=changed))
    }
    assert rows == {
        "GPUs cut again": ("36", "–"),
        "cut in vain": ("2", "–"),
        "slice-hours idle for cutting": ("7.8", "–"),
        "failures of nodes": ("1", "1"),
        "runs that they ended": ("6", "6"),
        "slice-hours that these had run": ("30.0", "30.0"),
        "slice-hours of nodes down": ("1.0", "1.0"),
    }
    shown = "".join(Page(page(replace(result(compared=False), present=present))).texts)
    assert "GPUs cut again" in shown
    assert "GPUs cut again" not in page(result())
    assert node_rows(result()) == []
