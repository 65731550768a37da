"""Histories and traces as text that a test has in memory."""

from collections.abc import Iterator

from slicewise.simulation.history.lines import Line


def text_lines(text: str) -> Iterator[Line]:
    """The lines that are not empty, as ``lines_of`` reads them from a file."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line)
