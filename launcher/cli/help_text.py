"""Lays out help texts for terminals, however the lines of the source are broken."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from inspect import cleandoc
from typing import Any

import typer

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
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    if _EXAMPLES.match(command.epilog or ""):
        command.format_help = partial(_format_help, command.format_help, _examples(command.epilog))
        command.epilog = None
    for child in getattr(command, "commands", {}).values():
        fit_for_terminals(child)


def _format_help(format_rest: Callable[..., None], examples: str, ctx: Any, formatter: Any) -> None:
    """Print the examples without Rich, which would fill lines up with blanks.

    Blanks after a backslash break what is copied.
    """
    format_rest(ctx, formatter)
    typer.echo(examples)


def _reflowed(text: str) -> str:
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


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
