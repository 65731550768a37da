"""Tests that every word about how something stands has a colour, and that colours can be read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from docs import dashboards
from slicewise.cluster.language import palette
from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.gpus.repartitions import RepartitionState, RepartitionStepOutcome
from slicewise.cluster.language.palette import FIGURES, GROUNDS, STATES, TONES, Look
from slicewise.cluster.language.rebalances import RunOutcome, StepOutcome
from slicewise.cluster.rpc.overview_messages import NodeCondition, ServiceCondition, SlicesByState
from slicewise.cluster.rpc.read_messages import ServiceEvent
from slicewise.launcher.rules.services.history import Stands
from slicewise.launcher.services.overview import Condition, State
from slicewise.slurm_plugin.cli.views.overview import TENANT_FIELDS

ROOT = Path(__file__).parents[4]
PLACES = ("templates", "slurm_plugin", "launcher", "cluster", "simulation", "docs")
TEXT, DRAWING = 4.5, 3.0
"""Least contrasts of text, and of what is drawn, by the Web Content Accessibility Guidelines."""


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def contrasts(look: Look, ground: str) -> Iterator[float]:
    yield contrast(look.colour.light, GROUNDS[ground].light)
    yield contrast(look.colour.dark, GROUNDS[ground].dark)


def test_every_word_about_how_something_stands_has_a_tone():
    kinds = (Severity, RunOutcome, StepOutcome, RepartitionState, RepartitionStepOutcome)
    words = {one.value for kind in kinds for one in kind}
    for kind in (NodeCondition, ServiceCondition, Condition, State, Stands):
        words |= set(get_args(kind))
    words |= set(get_args(ServiceEvent.model_fields["what"].annotation))
    assert words <= set(palette.CONDITIONS)


def test_every_state_of_slices_has_a_look():
    assert {f"{name}_millislices" for name in STATES} == (
        set(SlicesByState.model_fields) - {"capacity_millislices"}
    )


@pytest.mark.parametrize("ground", ["ground", "raised"])
@pytest.mark.parametrize("look", TONES.values(), ids=lambda look: look.word)
def test_words_can_be_read_on_both_grounds(look: Look, ground: str):
    assert min(contrasts(look, ground)) >= TEXT


@pytest.mark.parametrize("look", FIGURES.values(), ids=lambda look: look.word)
def test_lines_can_be_seen_on_both_grounds(look: Look):
    assert min(contrasts(look, "raised")) >= DRAWING


def test_text_can_be_read_on_what_jobs_hold():
    on_part = GROUNDS["on-part"]
    for name in ("used", "lent", "idle"):
        colour = STATES[name].colour
        assert contrast(colour.light, on_part.light) >= TEXT
        assert contrast(colour.dark, on_part.dark) >= DRAWING


def test_two_lines_of_one_chart_differ_in_more_than_their_hue():
    for names in (("nominal", "in_use", "borrowed", "lent", "waiting"), ("ready", "desired")):
        drawn = [(FIGURES[name].dashes, FIGURES[name].colour) for name in names]
        assert len({dashes for dashes, _ in drawn}) >= len(drawn) - 1


def test_no_colour_is_written_anywhere_else():
    files = (file for place in PLACES for file in (ROOT / place).rglob("*"))
    found = {
        str(file.relative_to(ROOT))
        for file in files
        if file.suffix in {".py", ".css", ".j2", ".js"}
        and re.search(r"#[0-9a-fA-F]{6}\b", file.read_text(encoding="utf-8"))
    }
    assert found == {"cluster/language/palette.py"}


def test_tables_and_dashboards_have_the_words():
    headings = {field.heading for field in TENANT_FIELDS}
    amounts = ("nominal", "borrowed", "lent", "limit", "in_use", "budget_left")
    assert headings >= {FIGURES[name].word for name in amounts}
    (quota,) = (
        panel
        for panels in dashboards.TENANTS.rows.values()
        for panel in panels
        if panel.title == "Slices in use, and the limit"
    )
    words = {legend.partition("}} ")[2] for legend, _ in quota.queries}
    assert words == {FIGURES[name].word for name in ("in_use", "limit", "nominal", "highest_limit")}


def test_grafana_draws_a_figure_as_the_page_does():
    board = next(text for name, text in dashboards.files().items() if "tenants" in name)
    assert FIGURES["in_use"].colour.dark in board
    assert r"/^\\S+ limit$/" in board
