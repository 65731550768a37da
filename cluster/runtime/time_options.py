"""Reads the moments that options of commands take."""

from datetime import datetime

import typer

from cluster.language.moments import FORMS, moment_from_text


def local_time(text: str, *, ahead: bool = False) -> datetime:
    """Parse an option's moment as local time; with ``ahead`` a span counts from now on.

    Raises typer.BadParameter, which names all forms.
    """
    found = moment_from_text(text, datetime.now().astimezone(), ahead=ahead)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a time. Write it as {FORMS} {'from now' if ahead else 'ago'}."
        )
    return found
