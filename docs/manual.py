"""Writes the manual pages, one for each command: ``python -m docs.manual FOLDER``."""

import gzip
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from docs.generate import flowed, loaded
from slicewise.launcher.cli.command_table import COMMANDS, FOR_EVERYBODY, FOR_OPERATORS

_PURPOSE = "elastic, multi-tenant inference on Slurm"
_FILES = (
    ("/etc/slicewise/slicewise.toml", "The settings; $SLICEWISE_CONFIG names another file."),
    ("/usr/share/slicewise", "Examples: settings, units, lines of slurm.conf."),
)


def pages() -> Mapping[str, str]:
    """Return each page's text by its file name."""
    found = {"slicewise.1": _lines(_all())}
    for name, one in COMMANDS.items():
        found[f"slicewise-{name}.1"] = _lines(_page(name, one.help, loaded(one)))
    return found


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _all() -> Iterator[str]:
    yield from _head("slicewise", _PURPOSE)
    yield from (".SH SYNOPSIS", ".B slicewise", r".I COMMAND", r"[\fIOPTIONS\fR] [\fIARGUMENTS\fR]")
    for heading, commands in (("FOR EVERYBODY", FOR_EVERYBODY), ("FOR OPERATORS", FOR_OPERATORS)):
        yield f".SH {heading}"
        for name, one in commands.items():
            yield from _entry(f"slicewise-{name}(1)", one.help)
    yield ".SH FILES"
    for file, meaning in _FILES:
        yield from _entry(file, meaning)


def _page(name: str, purpose: str, command: Any) -> Iterator[str]:
    yield from _head(f"slicewise-{name}", purpose.rstrip("."))
    yield ".SH DESCRIPTION"
    yield from _command(f"slicewise {name}", command, is_first=True)
    yield from (".SH SEE ALSO", ".BR slicewise (1)")


def _head(name: str, purpose: str) -> Iterator[str]:
    version = metadata.version("slicewise")
    yield f'.TH {_text(name.upper())} 1 "" "Slicewise {version}" "Slicewise"'
    yield from (".SH NAME", rf"{_text(name)} \- {_text(purpose)}")


def _command(name: str, command: Any, *, is_first: bool = False) -> Iterator[str]:
    """A command's words, options and examples, and then those of the commands in its tree."""
    if command.hidden:
        return
    if not is_first:
        yield f".SH {_text(name.upper())}"
    for paragraph in flowed(command.help).split("\n\n"):
        yield from (".PP", _text(paragraph))
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        context = typer.Context(command, info_name=name)
        words = " ".join(command.collect_usage_pieces(context))
        yield from (".PP", rf"\fB{_text(name)}\fR {_text(words)}")
        records = (one.get_help_record(context) for one in command.params)
        for record in filter(None, records):
            yield from _entry(record[0], flowed(record[1]))
    heading, _, examples = (command.epilog or "").partition(": ")
    if heading in {"Example", "Examples"}:
        yield from (".PP", "Examples:", ".PP", ".nf")
        yield from (_text(example) for example in examples.split(" | "))
        yield ".fi"
    for word, child in children.items():
        yield from _command(f"{name} {word}", child)


def _entry(what: str, meaning: str) -> Iterator[str]:
    yield from (".TP", rf"\fB{_text(what)}\fR", _text(meaning))


def _text(text: str) -> str:
    """Return text that roff takes as it is: no line of it is a request, hyphens can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def _write(folder: Path) -> None:
    """Write them compressed, the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
