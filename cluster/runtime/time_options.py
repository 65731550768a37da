"""Reads the moments that options of commands take."""

from datetime import UTC, datetime, tzinfo

import typer

from slicewise.cluster.language.moments import FORMS, moment_from_text
from slicewise.cluster.runtime.wall_clock import wall_s


def local_time(text: str, *, ahead: bool = False, zone: tzinfo | None = None) -> datetime:
    """Parse an option's moment as local time; with ``ahead`` a span counts from now on.

    With a ``zone`` it is that zone's time. Raises typer.BadParameter, which names all forms.
    """
    now = datetime.fromtimestamp(wall_s(), UTC).astimezone()
    moment_s = moment_from_text(text, now, ahead=ahead, zone=zone)
    if moment_s is None:
        raise typer.BadParameter(
            f"{text!r} is not a time. Write it as {FORMS} {'from now' if ahead else 'ago'}."
        )
    return moment_s
