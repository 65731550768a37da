"""Tests which keys a terminal's bytes are."""

import pytest

from slicewise.slurm_plugin.cli.commands.keyboard import Keyboard


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q5/", ["q", "5", "/"]),
        (b"\r\t\x7f\x03", ["enter", "tab", "backspace", "interrupt"]),
        (b"\x1b[A\x1bOB\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[Z", ["page-up", "page-down", "home", "end", "back-tab"]),
        (b"\x1b[1;5Aq", ["q"]),
        (b"\x1b[200~\x1b[201~x", ["x"]),
        (b"\x1bq", ["escape", "q"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        ("ä\u20ac".encode(), ["ä", "€"]),
        (b"\xff\xfeq", ["q"]),
    ],
)
def test_bytes_are_keys(sent: bytes, keys: list[str]):
    assert list(Keyboard().keys(sent)) == keys


def test_a_sequence_may_come_in_parts_and_an_esc_alone_is_a_key():
    keyboard = Keyboard()
    assert list(keyboard.keys(b"\x1b[")) == []
    assert list(keyboard.keys(b"6~")) == ["page-down"]
    assert list(keyboard.keys(b"\x1b")) == []
    assert keyboard.rest() == "escape"
    assert keyboard.rest() is None


def test_a_sequence_without_an_end_does_not_swallow_keys_for_ever():
    keyboard = Keyboard()
    assert list(keyboard.keys(b"\x1b[" + b"1;" * 100 + b"q")) != []
    list(keyboard.keys(b"\x1b[1;"))
    assert keyboard.rest() is None
    assert list(keyboard.keys(b"q")) == ["q"]
