"""Help texts as terminals show them, whatever the lines of the source are."""

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
    """Mend the help of a command and of all below it.

    A paragraph is one line, which Rich breaks where the terminal ends. Of an epilog
    ``Examples: COMMAND | COMMAND`` every command has a line of its own; one too long for 80 columns
    goes on behind a backslash. A flag shows no type.
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
    """Rich would fill lines up with blanks: behind a backslash they break what is copied."""
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
    """An example, broken before an option where it is too long."""
    line, *options = re.split(r"(?= --)", example)
    for option in options:
        if len(_INDENT + line + option + " \\") > _WIDTH:
            yield line + " \\"
            line = _INDENT + option.lstrip()
        else:
            line += option
    yield line
