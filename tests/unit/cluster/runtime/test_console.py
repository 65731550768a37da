"""Tests tables on terminals of any width: the least important part goes first, nothing is cut."""

from collections.abc import Callable

import pytest
from printed_text import printed_text
from rich.box import ASCII
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.units import slices_words
from slicewise.cluster.runtime.console import (
    Facts,
    FittingTable,
    PipeConsole,
    column,
    console,
    fitted,
    print_refusal,
    table_width,
    terminal_console,
)

REASON = "until the paper is out, or the reviewers ask for more of it"
COLUMNS = (
    column("name", ["vision/bert", "nlp/a"]),
    column("start", ["2026-11-21 02:47:40"] * 2, brief=["11-21 02:47:40"] * 2),
    column("runs", [3, 10], right=True, rank=1),
    column("address", ["http://gw:8080/vision/bert", "http://gw:8080/nlp/a"], rank=2),
    column("reason", [REASON, ""], folds=True),
)


def printed(width: int) -> str:
    return printed_text(FittingTable(COLUMNS), width)


def marks(text: str) -> list[str]:
    return sorted(text.replace("─", "").replace(" ", "").replace("\n", ""))


def test_a_table_without_rows_says_so_instead_of_headings_alone():
    empty = FittingTable((column("tenant", ()), column("slices", (), right=True)))
    for width in (20, 200):
        assert printed_text(empty, width).strip() == "None."
        assert printed_text(empty.or_say("No tenants."), width).strip() == "No tenants."
    assert "None." not in printed_text(FittingTable((column("tenant", ["vision"]),)), 200)


@pytest.mark.parametrize("width", [*range(12, 130), 1000])
def test_every_line_fits_and_nothing_is_cut_off(width: int):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    shown = fitted(COLUMNS, width)
    cells = [cell.plain for one in shown for cell in one.cells]
    assert marks(text) == marks("".join([*(one.heading for one in shown), *cells]))
    if table_width(shown) <= width:
        whole = [c.plain for one in shown if not one.folds for c in one.cells]
        assert [cell for cell in whole if cell not in text] == []


@pytest.mark.parametrize(
    ("width", "headings", "start"),
    [
        (1000, ["name", "start", "runs", "address", "reason"], "2026-11-21 02:47:40"),
        (101, ["name", "start", "runs", "address", "reason"], "2026-11-21 02:47:40"),
        (100, ["name", "start", "runs", "address", "reason"], "11-21 02:47:40"),
        (95, ["name", "start", "runs", "reason"], "11-21 02:47:40"),
        (67, ["name", "start", "reason"], "11-21 02:47:40"),
        (20, ["name", "start", "reason"], "11-21 02:47:40"),
    ],
)
def test_what_matters_least_goes_first(width: int, headings: list[str], start: str):
    shown = fitted(COLUMNS, width)
    assert [one.heading for one in shown] == headings
    assert shown[1].cells[0].plain == start


def test_free_text_takes_the_room_that_is_left():
    assert REASON not in printed(101)
    assert REASON in printed(1000)


def piped(shown: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    console().print(shown)
    return capsys.readouterr().out.split("\n")


def test_where_there_is_no_terminal_a_row_is_a_line(capsys: pytest.CaptureFixture[str]):
    table = FittingTable((*COLUMNS[:1], COLUMNS[2], column("why", ["a\nb" * 3000, ""])))
    assert piped(table, capsys) == [
        "name         runs  why",
        f"vision/bert     3  {'a b' * 3000}",
        "nlp/a          10",
        "",
    ]


def test_where_there_is_no_terminal_a_fact_is_a_line(capsys: pytest.CaptureFixture[str]):
    facts = Facts((("service", Text("vision/bert")), ("waits", Text("x " * 200 + "y"))))
    assert piped(facts, capsys) == ["service  vision/bert", f"waits    {'x ' * 200}y", ""]


def test_what_others_wrote_moves_no_cursor(capsys: pytest.CaptureFixture[str]):
    """A job's directory is its user's to name, and `service logs` tells an operator of it."""
    evil = "/tmp/\x1b]0;title\x07\x1b[2J\x9b2J"
    print_refusal(Refusal("SW-NOTHING", f"No log in {evil}:\nnone", f"They are in {evil}."))
    console().print(FittingTable((column("directory", [evil]),)))
    shown = "".join(capsys.readouterr())
    assert "/tmp/\ufffd]0;title\ufffd\ufffd[2J\ufffd2J" in shown
    assert set(shown) & set(map(chr, (*range(10), *range(11, 32), *range(127, 160)))) == set()


def test_what_others_wrote_is_no_markup():
    table = FittingTable((column("reason", ["[bold]loud[/bold] [x"], folds=True),))
    assert "[bold]loud[/bold] [x" in printed_text(table, 80)


@pytest.mark.parametrize(
    ("amount", "words"),
    [(1000, "1 slice"), (0, "0 slices"), (1500, "1.5 slices"), (11_000, "11 slices")],
)
def test_one_slice_is_no_slices(amount: int, words: str):
    assert slices_words(amount) == words


@pytest.mark.parametrize("made", [PipeConsole, terminal_console])
def test_no_text_is_obeyed_by_the_terminal(made: Callable[[], Console]):
    """A job's name could set the title of an operator's window, or hide a line."""
    hostile = "job \x1b]0;owned\x07 \x9b2J ends"
    out = made()
    with out.capture() as capture:
        out.print(Text(hostile))
        out.print(Panel(Text(hostile), box=ASCII))
    shown = capture.get()
    assert shown.count("job \ufffd]0;owned") == 2
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
