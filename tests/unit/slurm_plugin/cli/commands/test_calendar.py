"""Tests windows of the calendar as operators write, set and see them."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from builders.ledger_parts import LedgerParts
from builders.settings import site_settings
from builders.tenants import tenant
from stand_ins.daemon_in_process import answer_from
from stand_ins.scripted import ScriptedSlurm, sync_of
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.slurm_plugin.api.calendar_desk import CalendarDesk
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.cli.commands import calendar
from slicewise.slurm_plugin.cli.common.window_words import (
    bound_from_text,
    what_text,
    when_text,
)
from slicewise.slurm_plugin.common.calendar_requests import WindowCreateRequest
from slicewise.slurm_plugin.rules.quota.calendar import (
    ALL,
    Window,
    WindowKind,
    WindowRecord,
    check_window,
    rivals,
)
from slicewise.slurm_plugin.rules.quota.calendar_times import moments
from slicewise.slurm_plugin.rules.quota.clock_words import days_from_text, minute_from_text
from slicewise.slurm_plugin.rules.quota.types import Policy

pytestmark = pytest.mark.usefixtures("clock")

BERLIN = "Europe/Berlin"
MONDAY_S = 1_795_388_400
"""2026-11-23, midnight in Berlin."""

SETTINGS = site_settings(types=["1g.10gb", "3g.40gb"], ledger={"time_zone": BERLIN})
NOMINAL = Window(0, "vision", WindowKind.NOMINAL, Millislices(12000))


class FakeLedger(LedgerParts):
    """As the ledger checks and keeps windows."""

    def __init__(self) -> None:
        self.found: list[Window] = []
        self.ended: list[tuple[int, str]] = []

    def policy(self) -> Policy:
        quotas = {"vision": 6000, "nlp": 4000}
        return {name: tenant(name, n) for name, n in quotas.items()}

    def not_over(self) -> tuple[Window, ...]:
        return tuple(self.found)

    def add(self, window: Window, author: str, reason: str, zone: str) -> Window:
        assert author
        beside = rivals(self.policy(), self.found, window)
        when = moments((*beside, window), MONDAY_S, zone)
        check_window(self.policy(), beside, window, when)
        self.found.append(replace(window, window_id=len(self.found) + 1, reason=reason))
        return self.found[-1]

    def end(self, window_id: int, _author: str, reason: str) -> Window:
        self.ended.append((window_id, reason))
        return self.found.pop(window_id - 1)

    def history(self) -> tuple[WindowRecord, ...]:
        return (WindowRecord(NOMINAL, "olga", MONDAY_S, "otto", MONDAY_S + 60, "power is dear"),)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> FakeLedger:
    fake, slurm = FakeLedger(), ScriptedSlurm()
    monkeypatch.setattr(calendar, "load_settings", lambda: SETTINGS)
    monkeypatch.setattr(Reads, "capacity_millislices", lambda _: 14_000)
    monkeypatch.setattr(time, "time", lambda: MONDAY_S + 12 * 3600.0)
    cluster_state = sync_of(slurm)
    asyncio.run(cluster_state.turn())
    reads = Reads(SETTINGS, slurm, fake, cluster_state)  # type: ignore[arg-type]
    desk = CalendarDesk(SETTINGS, fake, cluster_state, reads)  # type: ignore[arg-type]
    answer_from(monkeypatch, desk.handlers())
    return fake


def said(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(calendar.calendar_app, words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


# Words


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon-fri", {0, 1, 2, 3, 4}),
        ("sat,sun", {5, 6}),
        ("fri-mon", {4, 5, 6, 0}),
        ("Tue", {1}),
        ("mon, wed-thu", {0, 2, 3}),
        ("mon-sun", set(range(7))),
    ],
)
def test_days_are_read(text: str, days: set[int]) -> None:
    assert days_from_text(text) == days


@pytest.mark.parametrize("text", ["", "monday", "mon-", "-fri", "mon-wed-fri", "mon,,tue", "1-5"])
def test_other_days_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        days_from_text(text)


def test_times_of_the_day_are_read() -> None:
    texts = ("08:30", "8:05", "24:00", "00:00")
    assert [minute_from_text(text, "--end-time", ends=True) for text in texts] == [510, 485, 0, 0]
    for text in ("8", "24:01", "12:60", "-1:00", "noon", "08:30:00"):
        with pytest.raises(InvalidInputError, match=r"--end-time.*SW-VALUE"):
            minute_from_text(text, "--end-time", ends=True)
    with pytest.raises(InvalidInputError, match=r"--start-time.*SW-VALUE"):
        minute_from_text("24:00", "--start-time", ends=False)


def test_a_time_that_the_clocks_skip_is_refused_as_that() -> None:
    """A window from 02:30 to 03:15 would end before it begins, it said: 02:30 was read as 03:30."""
    with pytest.raises(InvalidInputError, match=r"--first .*02:30.*: the clocks of .* skip") as one:
        bound_from_text("2027-03-28T02:30", "--first", BERLIN, ends=False)
    assert "Write 2027-03-28T03:30" in str(one.value.refusal.hint)
    santiago = "America/Santiago"  # Its clocks go from 24:00 to 01:00.
    skipped_s = bound_from_text("2026-09-06", "--first", santiago, ends=False)
    assert skipped_s == bound_from_text("2026-09-06T01:00", "--first", santiago, ends=False)


def test_a_day_before_all_others_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        bound_from_text("0001-01-01", "--first", BERLIN, ends=False)


def test_bounds_are_read_by_the_clocks_of_the_zone() -> None:
    assert bound_from_text("2026-11-23", "--first", BERLIN, ends=False) == MONDAY_S
    assert bound_from_text("2026-11-22", "--last", BERLIN, ends=True) == MONDAY_S
    assert bound_from_text("2026-11-22T23:00", "--last", "UTC", ends=True) == MONDAY_S
    assert bound_from_text("2026-11-23T00:00+01:00", "--first", "UTC", ends=False) == MONDAY_S
    december_s = bound_from_text("2026-12-01", "--first", BERLIN, ends=False)
    assert bound_from_text("2026-12", "--first", BERLIN, ends=False) == december_s
    assert bound_from_text("2026-11", "--last", BERLIN, ends=True) == december_s
    today_s = bound_from_text("today", "--first", BERLIN, ends=False)
    assert bound_from_text("today", "--last", BERLIN, ends=True) in {
        today_s + hours * 3600 for hours in (23, 24, 25)
    }
    for ends in (False, True):
        ahead_s = bound_from_text("2w", "--last", BERLIN, ends=ends) - time.time()
        assert 14 * 86_400 - 60 < ahead_s <= 14 * 86_400
    for text in ("tomorrow", "2026-13-01", "2026-13", "9999-12-31T8", "2026-11-23T8"):
        with pytest.raises(InvalidInputError, match=r"--first.*SW-VALUE"):
            bound_from_text(text, "--first", BERLIN, ends=False)


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (NOMINAL, "always"),
        (replace(NOMINAL, days=frozenset({4, 5, 6, 0, 2})), "wed,fri-mon"),
        (replace(NOMINAL, begin_min=480, end_min=1080), "08:00-18:00"),
        (replace(NOMINAL, days=frozenset({5}), begin_min=480), "sat 08:00-24:00"),
        (replace(NOMINAL, first_s=MONDAY_S), "from 2026-11-23 00:00"),
        (
            replace(NOMINAL, end_min=360, first_s=MONDAY_S, last_s=MONDAY_S + 60),
            "00:00-06:00 2026-11-23 00:00 to 2026-11-23 00:01",
        ),
    ],
)
def test_when_a_window_holds_is_told(window: Window, text: str) -> None:
    assert when_text(window, BERLIN) == text


def test_what_a_window_sets_is_told() -> None:
    unlimited = replace(NOMINAL, kind=WindowKind.LENDING, amount_millislices=Millislices(10**9))
    assert what_text(NOMINAL) == "nominal 12"
    assert what_text(unlimited) == "lending limit unlimited"


# Commands


OFFICE = (
    "create",
    "vision",
    "--nominal",
    "10",
    "--weekdays",
    "mon-fri",
    "--start-time",
    "8:00",
    "--end-time",
    "18:00",
)


def test_a_window_is_set_and_told(ledger: FakeLedger) -> None:
    assert said(*OFFICE).splitlines() == [
        "Window 1: vision, nominal 10, mon-fri 08:00-18:00.",
        "It is in force now, until Mon 2026-11-23 18:00, then from Tue 2026-11-24 08:00 to 18:00.",
    ]
    night = said(
        "create", "--all-tenants", "--cap", "9.5", "--start-time", "22:00", "--end-time", "06:00"
    )
    assert night.splitlines() == [
        "Window 2: all together, cap 9.5, 22:00-06:00.",
        (
            "It holds from Mon 2026-11-23 22:00 to Tue 2026-11-24 06:00,"
            " then from Tue 2026-11-24 22:00 to Wed 2026-11-25 06:00."
        ),
    ]
    event = ("--first", "2026-12-01", "--last", "2026-12-05", "--reason", "paper")
    found = json.loads(said("create", "nlp", "--lending-limit", "unlimited", *event, "--json"))
    window = found["window"]
    assert (window["window_id"], window["kind"]) == (3, "lending")
    assert window["amount_millislices"] == 10**9
    assert (window["last_s"] - window["first_s"], window["reason"]) == (5 * 86400, "paper")
    assert [one.tenant for one in ledger.found] == ["vision", ALL, "nlp"]


@pytest.mark.parametrize(
    ("words", "tells"),
    [
        ((), "It is in force now, without an end."),
        (("--first", "2026-12-01"), "It holds from Tue 2026-12-01 00:00 on."),
        (
            ("--first", "2026-12-01", "--last", "2026-12-05T18:00"),
            "It holds from Tue 2026-12-01 00:00 to Sat 2026-12-05 18:00.",
        ),
        (
            ("--weekdays", "fri,sat", "--start-time", "20:00", "--last", "2026-11-28T22:00"),
            (
                "It holds from Fri 2026-11-27 20:00 to Sat 2026-11-28 00:00,"
                " then from Sat 2026-11-28 20:00 to 22:00."
            ),
        ),
        (
            ("--weekdays", "mon", "--start-time", "08:00", "--end-time", "10:00"),
            "It holds from Mon 2026-11-30 08:00 to 10:00, then from Mon 2026-12-07 08:00 to 10:00.",
        ),
    ],
)
def test_it_is_told_when_a_window_holds_next(
    ledger: FakeLedger, words: tuple[str, ...], tells: str
) -> None:
    assert said("create", "vision", "--cap", "5", *words).splitlines()[1] == tells


def test_as_json_a_new_window_has_its_next_two_spans(ledger: FakeLedger) -> None:
    found = json.loads(said(*OFFICE, "--json"))
    noon_s, evening_s = MONDAY_S + 12 * 3600, MONDAY_S + 18 * 3600
    assert (found["in_force"], found["next_change_s"]) == (True, evening_s)
    assert found["spans"] == [
        {"begin_s": noon_s, "end_s": evening_s},
        {"begin_s": MONDAY_S + 32 * 3600, "end_s": MONDAY_S + 42 * 3600},
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("create", "vision"),
        ("create", "vision", "--nominal", "1", "--cap", "2"),
        ("create", "--nominal", "1"),
        ("create", "vision", "--all-tenants", "--cap", "1"),
        ("create", "--all-tenants", "--nominal", "1"),
    ],
)
def test_what_is_not_clear_is_asked(ledger: FakeLedger, words: tuple[str, ...]) -> None:
    said(*words, status=2)
    assert ledger.found == []


def test_a_window_that_would_never_hold_is_refused(ledger: FakeLedger) -> None:
    monday = ("--first", "2026-11-23", "--last", "2026-11-23")
    with pytest.raises(InvalidInputError, match=r"never apply.*SW-VALUE"):
        said("create", "nlp", "--nominal", "1", "--weekdays", "sat", *monday)
    assert ledger.found == []
    said(
        "create",
        "nlp",
        "--nominal",
        "1",
        "--weekdays",
        "sun",
        "--start-time",
        "22:00",
        "--end-time",
        "06:00",
        *monday,
    )


@pytest.mark.parametrize(
    "words",
    [
        {"begin_min": 99_999},
        {"end_min": -5},
        {"first_s": 10**15},
        {"last_s": 10**15},
        {"first_s": -(10**12)},
        {"amount_millislices": -5},
        {"amount_millislices": 10**30},
    ],
)
def test_numbers_that_no_command_would_send_are_refused_as_such(
    ledger: FakeLedger, words: dict[str, Any]
) -> None:
    request = WindowCreateRequest(window=replace(NOMINAL, **words))
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        DaemonClient(SETTINGS.daemon).call(request)
    assert ledger.found == []


def test_more_than_the_cluster_has_at_some_hour_is_refused(ledger: FakeLedger) -> None:
    more = ("create", "nlp", "--nominal", "8", "--weekdays", "mon-fri", "--start-time", "17:00")
    said(*OFFICE)
    with pytest.raises(InvalidInputError, match=r"From Mon 17:00 on.* 4 slices above.*CAPACITY"):
        said(*more)
    said("create", "nlp", "--nominal", "8", "--weekdays", "sat,sun")
    said(*more[:-1], "18:00")
    said(*more, "--overcommit")
    assert len(ledger.found) == 4


def test_a_window_in_place_of_another_is_not_counted_beside_it(ledger: FakeLedger) -> None:
    said(*OFFICE)
    said("create", "vision", "--nominal", "9", "--weekdays", "mon-fri")
    with pytest.raises(InvalidInputError, match="CAPACITY"):
        said("create", "vision", "--nominal", "11", "--weekdays", "mon")


def test_a_window_whose_removal_brings_more_than_the_cluster_has_is_told(
    ledger: FakeLedger,
) -> None:
    evenings = ("--weekdays", "mon-fri", "--start-time", "18:00")
    said("create", "vision", "--nominal", "2", *evenings)
    said("create", "nlp", "--nominal", "9", *evenings)
    assert "squeezed" not in said("delete", "2")
    said("create", "nlp", "--nominal", "9", *evenings)
    told = said("delete", "1")
    assert "From Mon 18:00 on, the quotas at the top would be 1 slice above" in told


def test_windows_are_listed_with_what_holds_and_what_comes(ledger: FakeLedger) -> None:
    said(*OFFICE, "--reason", "course")
    said("create", "nlp", "--cap", "2", "--first", "2026-12-01")
    lines = said("list").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["1", "vision"], ["2", "nlp"]]
    assert "in force" in lines[1]
    assert "2026-11-23 18:00" in lines[1]
    assert "course" in lines[1]
    assert "in force" not in lines[2]
    assert "2026-12-01 00:00" in lines[2]


def test_the_week_is_drawn_of_those_whose_nominal_changes(ledger: FakeLedger) -> None:
    said(*OFFICE)
    (week,) = [line for line in said("list").splitlines() if line.startswith("vision")]
    assert week.split() == ["vision", *["▄▄▄▇▇▇▄▄"] * 5, *["▄" * 8] * 2]
    said("create", "nlp", "--lending-limit", "1")
    assert "▇▇▇▇▇▇▇▇" in said("list", "nlp")


def test_as_json_a_window_has_when_it_changes(ledger: FakeLedger) -> None:
    said(*OFFICE)
    (found,) = json.loads(said("list", "vision", "--json"))
    assert found["window"]["days"] == [0, 1, 2, 3, 4]
    assert (found["in_force"], found["next_change_s"]) == (True, MONDAY_S + 18 * 3600)
    assert json.loads(said("list", "nlp", "--json")) == []


def test_a_window_that_always_holds_changes_never(ledger: FakeLedger) -> None:
    said("create", "vision", "--cap", "5")
    (found,) = json.loads(said("list", "--json"))
    assert (found["in_force"], found["next_change_s"]) == (True, None)
    assert "never" in said("list")


def test_without_windows_it_is_said_how_to_set_one(ledger: FakeLedger) -> None:
    assert "slicewise tenant-quota calendar create" in said("list")
    with pytest.raises(InvalidInputError, match="SW-TENANT-UNKNOWN"):
        said("list", "nobody")


def test_history_has_what_was_removed_by_whom(ledger: FakeLedger) -> None:
    line = said("list", "--all").splitlines()[1]
    assert "olga" in line
    assert "by otto: power is dear" in line
    (found,) = json.loads(said("list", "vision", "--all", "--json"))
    assert (found["author"], found["ended_by"]) == ("olga", "otto")
    assert "never" in said("list", "nlp", "--all")


def test_a_window_is_deleted(ledger: FakeLedger) -> None:
    said(*OFFICE)
    deleted = said("delete", "1", "--reason", "over")
    assert deleted == "Deleted window 1: vision, nominal 10, mon-fri 08:00-18:00.\n"
    assert (ledger.found, ledger.ended) == ([], [(1, "over")])
