"""Lays out help texts for terminals, however the lines of the source are broken."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from inspect import cleandoc
from typing import Any

import typer

HELP_OPTIONS = ["--help", "-h"]
_EXAMPLES = re.compile(r"Examples?:(?= )")
_HEADING_INDENT = " "
_INDENT = "   "
_WIDTH = 80


def fit_for_terminals(command: Any) -> None:
    """Lay out the help of a command and of all commands below it.

    A paragraph becomes one line, which Rich breaks where the terminal ends. In an epilog
    ``Examples: COMMAND | COMMAND`` every command gets a line of its own; one too long for 80
    columns goes on after a backslash. A flag shows no type.
    """
    command.help = _reflowed(command.help or "")
    names = command.context_settings.get("help_option_names", HELP_OPTIONS)
    context = typer.Context(command, help_option_names=names)
    for option in (*command.params, command.get_help_option(context)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    examples = _examples(command.epilog) if _EXAMPLES.match(command.epilog or "") else ""
    command.format_help = partial(_format_help, command.format_help, examples)
    if examples:
        command.epilog = None
    for child in getattr(command, "commands", {}).values():
        fit_for_terminals(child)


def _format_help(format_rest: Callable[..., None], examples: str, ctx: Any, formatter: Any) -> None:
    """Print the examples without Rich, which would fill lines up with blanks.

    Blanks after a backslash break what is copied.
    """
    without_styles_where_plain()
    format_rest(ctx, formatter)
    if examples:
        typer.echo(examples)


def without_styles_where_plain() -> None:
    """Let Typer's help and usage errors have no styles where NO_COLOR is set."""
    # Imported here: both take a while, and only help and usage errors need them.
    if import_module("slicewise.cluster.runtime.console").is_plain():
        printer: Any = import_module("typer.rich_utils")
        printer.COLOR_SYSTEM = None


def _reflowed(text: str) -> str:
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _examples(epilog: str) -> str:
    heading, _, examples = epilog.partition(" ")
    lines = (line for one in examples.split(" | ") for line in _lines(one))
    return "\n".join((_HEADING_INDENT + heading, *(_INDENT + line for line in lines)))


def _lines(example: str) -> Iterator[str]:
    """Yield the lines of an example, broken before an option where it is too long."""
    line, *options = re.split(r"(?= --)", example)
    for option in options:
        if len(_INDENT + line + option + " \\") > _WIDTH:
            yield line + " \\"
            line = _INDENT + option.lstrip()
        else:
            line += option
    yield line
