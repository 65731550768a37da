"""Tests what is read of the gateway's lines about requests that wait for a start."""

import pytest

from slicewise.launcher.rules.gateway.start_lines import StartLine, parse_start_line


def test_the_lines_of_the_ring_are_read():
    assert parse_start_line("held tritonidle1 1500") == StartLine("tritonidle1", 1.5)
    digest = "0f" * 32
    line = parse_start_line(f"answered {digest} triton7 2750")
    assert line == StartLine("triton7", 2.75, digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "held",
        "held triton1",
        "held triton1 x",
        "usage a b",
        "held a b 1",
        "held ../a 1",
        "answered a 1",
    ],
)
def test_another_line_is_none(text: str):
    assert parse_start_line(text) is None
