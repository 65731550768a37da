"""Options of all commands that print: ``--json``, ``-o json|yaml``, and ``--watch`` of lists."""

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text
from typer.main import get_command

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.console import (
    console,
    document_format,
    plain,
    print_json,
    print_json_line,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, as -o json.")]
Watch = Annotated[bool, typer.Option("--watch", help="Update every 2 s until Ctrl-C.")]

_WATCH_S = 2.0


class DocumentFormat(StrEnum):
    """How a command prints what ``--json`` prints."""

    JSON = "json"
    YAML = "yaml"


def _declaration(
    output_format: Annotated[
        DocumentFormat | None, typer.Option("-o", help="Print JSON or YAML.", show_default=False)
    ] = None,
) -> None:
    """Declare the option, of which Typer makes what each command gets."""


def offer_formats(command: Any) -> None:
    """Give ``-o`` to each command in a tree that has ``--json``, which it then stands for."""
    for child in getattr(command, "commands", {}).values():
        offer_formats(child)
    as_json = next((param for param in command.params if "--json" in param.opts), None)
    if as_json is None or any("-o" in param.opts for param in command.params):
        return
    declared = typer.Typer(add_completion=False)
    declared.command()(_declaration)
    (option,) = get_command(declared).params
    option.expose_value, option.is_eager, option.callback = False, True, _choose
    as_json.callback = _is_asked_for
    command.params.insert(command.params.index(as_json) + 1, option)


def _choose(ctx: Any, _option: object, value: DocumentFormat | None) -> None:
    ctx.meta[__name__] = value is not None
    if value is not None:
        before = document_format.set(value)
        ctx.call_on_close(lambda: document_format.reset(before))


def _is_asked_for(ctx: Any, _option: object, value: bool) -> bool:
    return value or ctx.meta[__name__]


def _as_it_is(seen: object) -> object:
    return seen


def show(
    look: Callable[[], object],
    render: Callable[[Any], RenderableType],
    *,
    watch: bool,
    as_json: bool,
    as_values: Callable[[Any], object] = _as_it_is,
) -> None:
    """Print what ``look`` returns, for people or programs; with ``watch`` again and again.

    ``as_values`` is what programs get of it.

    A terminal is drawn anew. Others get what has changed, in JSON one document on each line. A look
    that fails later than the first one is told, and tried again.
    """
    if not watch:
        seen = look()
        if as_json:
            print_json(as_values(seen))
        else:
            console().print(render(seen))
        return
    try:
        if as_json or not sys.stdout.isatty():
            _print_changes(look, render, as_values, as_json=as_json)
        else:
            _draw(look, render)
    except KeyboardInterrupt:
        return


def _print_changes(
    look: Callable[[], object],
    render: Callable[[Any], RenderableType],
    as_values: Callable[[Any], object],
    *,
    as_json: bool,
) -> None:
    seen, printed, told = look(), None, ""
    while True:
        if (values := plain(as_values(seen))) != printed:
            if as_json:
                print_json_line(values)
            else:
                console().print(render(seen))
            printed = values
        time.sleep(_WATCH_S)
        try:
            seen, told = look(), ""
        except SlicewiseError as error:
            if told != (told := str(error)):
                typer.echo(told, err=True)


def _draw(look: Callable[[], object], render: Callable[[Any], RenderableType]) -> None:
    from rich.live import Live  # noqa: PLC0415 -- only for who watches

    with Live(render(look()), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            try:
                shown = render(look())
            except SlicewiseError as error:
                shown = Text(str(error), style="red")
            live.update(shown, refresh=True)
