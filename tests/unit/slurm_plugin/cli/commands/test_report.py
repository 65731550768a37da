"""Tests the report of a month: sums of the books, inert names, one file that asks for nothing."""

import csv
import json
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from builders.month_world import BEGIN_S, END_S, HOSTILE, NOW_S, SETTINGS, SHARES, OctoberBooks
from typer.testing import CliRunner

from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.rpc.history_messages import HistoryRequest
from slicewise.launcher.main import app
from slicewise.slurm_plugin.cli.commands import ledger, report
from slicewise.slurm_plugin.cli.common.month_facts import month_facts
from slicewise.slurm_plugin.page.report import CHARTED, report_html
from slicewise.slurm_plugin.rules.common.history import KEPT_S, history_steps
from slicewise.slurm_plugin.rules.pages.month import (
    MonthFacts,
    in_use,
    kept,
    mean,
    recorded,
    sum_millislice_s,
    values_of,
)

pytestmark = pytest.mark.usefixtures("clock")

Said = Callable[..., str]


@pytest.fixture
def source() -> OctoberBooks:
    return OctoberBooks()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, source: OctoberBooks) -> Said:
    for module in (ledger, report):
        monkeypatch.setattr(module, "Books", lambda _: source)
        monkeypatch.setattr(module, "load_settings", lambda: SETTINGS)
    monkeypatch.setattr(time, "time", lambda: float(NOW_S))

    def run(*words: str, code: int = 0) -> str:
        found = CliRunner().invoke(app, words)
        assert found.exit_code == code, found.output
        return found.stdout

    return run


def facts_of(source: OctoberBooks, tenant: str | None = None, now_s: int = NOW_S) -> MonthFacts:
    return month_facts(source, SETTINGS, tenant, BEGIN_S, now_s)


class Page(HTMLParser):
    """Tags that are open, and every attribute; fails on tags that end out of order."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_charged_sums_are_those_of_the_statement(said: Said, source: OctoberBooks):
    source.shared = SHARES
    made = json.loads(said("report", "--json"))
    assert (made["month"], made["from_s"], made["until_s"]) == ("2026-10", BEGIN_S, END_S)
    charged = {
        one["tenant"]: (one["charged_millislice_s"], one["runs"])
        for one in made["tenants"]
        if one["runs"]
    }
    words = ("--from", "2026-10", "--until", "2026-11-01", "--json")
    stated = json.loads(said("ledger", "statement", *words))
    assert charged == {
        one["tenant"]: (one["charged_millislice_s"], one["runs"]) for one in stated["tenants"]
    }
    by_service = {
        (one["tenant"], each["service"]): each["charged_millislice_s"]
        for one in made["tenants"]
        for each in one["services"]
    }
    assert by_service == {
        (one["tenant"], one["key"]): one["charged_millislice_s"] for one in stated["lines"]
    }


def test_money_and_joules_are_those_of_a_tenant_s_own_use(said: Said, source: OctoberBooks):
    """Whoever pays; who has neither has a dash, and no joules."""
    made = json.loads(said("report", "--json"))
    assert made["currency"] == "EUR"
    found = {one["tenant"]: (one["millionths"], one["energy_mj"]) for one in made["tenants"]}
    assert found["vision"] == (385_000, 9_000_000_000)
    assert found["nlp"] == (None, 0)
    text = report_html(facts_of(source), NOW_S)
    assert "<td>0.385</td><td>2.500</td>" in text
    assert "<td>–</td><td>0.000</td>" in text
    assert re.search(r"^vision +610\.\d+ +0\.385 +2\.500 ", said("report"), flags=re.MULTILINE)


def test_joules_that_could_not_be_added_up_are_not_zero(
    said: Said, source: OctoberBooks, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source, "energy", lambda *_: None)
    made = json.loads(said("report", "--json"))
    assert {one["energy_mj"] for one in made["tenants"]} == {None}
    text = report_html(facts_of(source), NOW_S)
    assert "<td>0.385</td><td>–</td>" in text
    assert "slicewise energy says why" in text
    assert re.search(r"^vision +610\.\d+ +0\.385 +– ", said("report"), flags=re.MULTILINE)


def test_a_service_without_a_replica_of_its_own_has_what_it_used_of_its_pool(
    said: Said, source: OctoberBooks
):
    source.shared = SHARES
    facts = facts_of(source)
    (vision,) = (tenant for tenant in facts.tenants if tenant.name == "vision")
    (clip,) = (service for service in vision.services if service.name == "clip")
    assert clip.charged_millislice_s == 3_600_000
    assert clip.history is not None
    stated = said("ledger", "statement", "--from", "2026-10", "--until", "2026-11-01")
    (line,) = (line for line in stated.splitlines() if "clip" in line)
    assert {"0", "0.00", "1.00"} <= set(line.replace("│", " ").split())
    assert "-1.00" in stated
    assert "pool" in stated.partition("tenant")[2].splitlines()[0]


def test_the_days_of_the_csv_add_up_and_hold_no_formula(said: Said):
    rows = list(csv.DictReader(said("report", "--csv").splitlines()))
    assert len(rows) == 31 * 5
    assert {row["tenant"] for row in rows} == {"vision", "nlp", HOSTILE, "cluster", "'=cmd()"}
    vision = [row for row in rows if row["tenant"] == "vision"]
    whole = sum(int(row["charged_millislice_s"]) for row in vision)
    assert whole == 1000 * (1800 * 3 + 300_000 * 7 + 90_000 + 900)
    assert vision[0]["charged_millislice_s"] == "5400000"
    # The gap of the 12th; elsewhere a day's mean, and what was left at its end.
    assert (vision[11]["day"], vision[11]["in_use_millislices"]) == ("2026-10-12", "")
    assert vision[0]["in_use_millislices"] == "9000"
    assert vision[11]["budget_left_millislice_s"] == ""
    left = [int(row["budget_left_millislice_s"]) for row in vision[:11]]
    assert left == sorted(left, reverse=True)
    assert rows[-1]["budget_left_millislice_s"] == ""


def test_the_page_is_whole_and_asks_for_nothing(source: OctoberBooks):
    text = report_html(facts_of(source), NOW_S)
    page = Page(text)
    assert page.open == []
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "object", "base", "form"})
    assert page.attributes.isdisjoint({"src", "href", "srcset", "data", "action", "style"})
    assert not any(name.startswith("on") for name in page.attributes)
    assert not re.search(r"https?:|@import|url\(", text)
    assert "&lt;script&gt;alert(1)" in text
    assert "2026-10-01 00:00 to 2026-11-01 00:00, Europe/Berlin" in text


def test_ratios_are_of_what_is_known(source: OctoberBooks):
    facts = facts_of(source)
    assert in_use(facts.slices) == pytest.approx(0.67, abs=0.01)
    assert recorded(facts.slices) == pytest.approx(721 / 745)
    found = kept(facts.slices)
    assert found is not None
    assert 0.99 < found < 1


def test_without_history_figures_are_dashes_and_charges_stand(
    source: OctoberBooks, monkeypatch: pytest.MonkeyPatch
):
    empty = source.history

    def history(request):
        answer = empty(request)
        return answer.model_copy(
            update={
                "samples": (0,) * len(answer.samples),
                "series": tuple(
                    one.model_copy(update={"values": (None,) * len(one.values), "highest": ()})
                    for one in answer.series
                ),
            }
        )

    monkeypatch.setattr(source, "history", history)
    facts = facts_of(source)
    assert (in_use(facts.slices), kept(facts.slices), recorded(facts.slices)) == (None, None, 0.0)
    text = report_html(facts, NOW_S)
    assert "Nothing was recorded in this time." in text
    assert "–" in text
    assert facts.tenants[0].charged_millislice_s > 0


def test_an_hour_that_two_months_share_is_of_the_later_one(
    source: OctoberBooks, monkeypatch: pytest.MonkeyPatch
):
    zone = "Asia/Kolkata"
    begin_s = period_start_s(Period.MONTH, BEGIN_S + 86_400, zone)
    asked: list[HistoryRequest] = []
    answer = source.history
    monkeypatch.setattr(source, "history", lambda one: (asked.append(one), answer(one))[1])
    settings = SETTINGS.model_copy(
        update={"ledger": SETTINGS.ledger.model_copy(update={"time_zone": zone})}
    )
    month_facts(source, settings, "vision", begin_s, NOW_S)
    found = history_steps(asked[0].since_s, asked[0].until_s, NOW_S, KEPT_S, 1000)
    assert len(found.times_s) == 744
    assert found.times_s[0] == begin_s - 1800


def test_a_tenant_s_report_has_no_run_of_an_account_that_it_pays_for(
    source: OctoberBooks, monkeypatch: pytest.MonkeyPatch
):
    own, everyone = source.statement("vision", BEGIN_S), source.statement(None, BEGIN_S)
    monkeypatch.setattr(source, "statement", lambda *_: everyone)
    (found,) = facts_of(source, "vision").tenants
    assert found.charged is not None
    assert (found.name, found.charged.runs) == ("vision", own[0].totals[0].runs)


def test_a_tenant_s_report_has_only_it(said: Said, source: OctoberBooks, tmp_path: Path):
    file = tmp_path / "vision.html"
    said("report", "--tenant", "vision", "--output", str(file))
    text = file.read_text()
    assert "vision/bert" in text
    assert "nlp" not in text
    assert source.asked == ["cluster", "vision/bert", f"vision/{HOSTILE}", "vision"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_tenant_that_is_called_cluster_is_no_cluster(source: OctoberBooks):
    facts_of(source)
    assert source.asked.count("cluster") == 1
    assert "cluster/" in source.asked


def test_only_those_charged_most_are_drawn():
    many = OctoberBooks("vision", "nlp", *(f"t{number}" for number in range(CHARTED)))
    text = report_html(facts_of(many), NOW_S)
    assert text.count("<section>") == CHARTED
    assert f"Drawings below are of the {CHARTED} tenants" in text
    assert "Slices of vision" in text
    assert "Slices of =cmd()" in text
    assert text.count('<tr><th scope="row">t9</th>') == 1
    assert "Slices of t9<" not in text


def test_a_month_that_goes_on_is_reported_up_to_now(source: OctoberBooks):
    facts = facts_of(source, now_s=BEGIN_S + 3 * 86_400 + 60)
    assert facts.until_s == BEGIN_S + 3 * 86_400 + 60
    assert [day.text for day in facts.days] == [f"2026-10-0{number}" for number in range(1, 5)]
    assert report_html(facts, facts.until_s)


def test_a_terminal_gets_a_table(said: Said):
    shown = said("report")
    assert shown.startswith("2026-10, Europe/Berlin: 6")
    assert "% of guaranteed slices in time" in shown
    assert re.search(r"^vision +610\.", shown, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("month", "words"),
    [("october", "write a month as"), ("2026-13", "write a month as"), ("2026-12", "not begun")],
)
def test_what_is_no_month_is_refused(said: Said, month: str, words: str):
    with pytest.raises(AssertionError, match=words):
        said("report", "--month", month)


def test_a_month_can_be_named(said: Said):
    assert json.loads(said("report", "--month", "2026-11", "--json"))["until_s"] == NOW_S


def test_an_hour_of_which_one_look_is_known_counts_as_one_look(source: OctoberBooks):
    whole = source.history(HistoryRequest(about="cluster", since_s=BEGIN_S, until_s=END_S))
    one = whole.model_copy(update={"samples": (1, *(0,) * (len(whole.samples) - 1))})
    first = values_of(one, "used")[0]
    assert first is not None
    assert sum_millislice_s(one, "used") == round(first * 10)
    assert mean(one, "used") == first
    assert recorded(one) == pytest.approx(10 / (745 * 3600))
