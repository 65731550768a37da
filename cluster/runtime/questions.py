"""Asks for confirmation at a terminal, and only there."""

import sys

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError


def confirm(question: str, *, yes: bool, as_json: bool = False) -> None:
    """Ask on stderr, unless ``yes`` answers; raises typer.Abort for a no.

    Raises SlicewiseError (SW-ABORTED) instead of asking where no person can answer: with
    ``as_json``, and where stdin is no terminal. A script's pipe may never end, and what a script
    reads from stdin is meant for something else.
    """
    if yes:
        return
    if as_json or not is_at_a_terminal():
        raise SlicewiseError(
            Code.ABORTED,
            f"This needs a confirmation, and nothing was done: {question}",
            "--yes answers it.",
        )
    typer.confirm(question, abort=True, err=True)


def is_at_a_terminal() -> bool:
    """Whether a person can answer on stdin."""
    # Python has no stdin where the caller has closed it.
    return sys.stdin is not None and sys.stdin.isatty()
