"""The one executable, ``slicewise``: lists every command tree, and imports the one it runs."""

import atexit
import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise, takewhile
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal, SlicewiseError
from slicewise.launcher.cli.command_table import (
    COMMANDS,
    FOR_EVERYBODY,
    FOR_OPERATORS,
    Command,
)
from slicewise.launcher.cli.help_text import (
    HELP_OPTIONS,
    fit_for_terminals,
    without_styles_where_plain,
)

_GARBAGE_AFTER = 1_000_000
"""New objects after which Python looks for garbage."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write for which there is no room."""
_USUAL_GARBAGE = gc.get_threshold()
_AS_JSON = (("-o", "json"), ("-o", "yaml"))
"""Words that ask for a format of programs, as ``--json`` does."""
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Pydantic's variable that says which of its plugins it leaves alone."""
_USAGE_ERROR: Any = import_module(typer.BadParameter.__module__).UsageError
"""Base of ``typer.BadParameter``, which Typer does not export."""


class LazyGroup(TyperGroup):
    """Knows its commands' names and first lines; imports a command when it is run.

    What it has registered stands in for the commands in listings and in the shell's completion.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the real command in place of the one that stands for it."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        command = COMMANDS.get(str(name))
        return name, stand_in if command is None else loaded(str(name), command), rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Format its own help like that of the commands that it loads."""
        fit_for_terminals(self)
        without_styles_where_plain()
        super().format_help(ctx, formatter)


def loaded(name: str, one: Command) -> Any:
    """Return the command or the tree of commands itself, with all that it imports."""
    if one.stays:
        gc.set_threshold(*_USUAL_GARBAGE)
    module, _, attribute = one.place.partition(":")
    with _without_plugins(), _interruptible():
        target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        target = _alone(target, one.epilog)
    # Only the executable itself installs completion.
    target._add_completion = False  # noqa: SLF001
    # A tree has a help text of its own, and stays a tree while it has a single command.
    is_tree = isinstance(target.info.help, str)
    command = get_group(target) if is_tree else get_command(target)
    command.name = name
    import_module("slicewise.cluster.runtime.output_options").offer_formats(command)
    fit_for_terminals(command)
    return command


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep pydantic from reading every installed package's metadata in search of plugins.

    Programs that are run later do not see the variable.
    """
    before = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "__all__"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PLUGINS]
        else:
            os.environ[_PLUGINS] = before


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the program at once while it imports.

    Python's own way raises an error at any place, and where that is a callback of an import, prints
    and forgets it: the command went on, and made the change that was to be stopped.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _alone(function: Any, epilog: str) -> typer.Typer:
    command = typer.Typer()
    command.command(epilog=epilog)(function)
    return command


app = typer.Typer(
    name="slicewise",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": HELP_OPTIONS},
)


def _stand_in() -> None: ...


for _panel, _commands in (("For everybody", FOR_EVERYBODY), ("For operators", FOR_OPERATORS)):
    for _name, _one in _commands.items():
        app.command(_name, help=_one.help, rich_help_panel=_panel)(_stand_in)


def _print_version(wanted: bool) -> None:
    if wanted:
        metadata = import_module("importlib.metadata")
        typer.echo(f"slicewise {metadata.version('slicewise')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Elastic, multi-tenant Triton inference on Slurm."""


def main() -> None:
    """Run a command; an expected failure is one message and an exit code, never a traceback."""
    _leave_garbage()
    _take_any_output()
    words = tuple(takewhile("--".__ne__, sys.argv[1:]))
    as_json = "--json" in words or any(pair in pairwise(words) for pair in _AS_JSON)
    try:
        code = _exit_code(as_json=as_json)
        # Here, so that a full disk is told as other failures are; at Python's end it would not be.
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        # The reader has seen enough and closed the pipe, as ``head`` does.
        _leave_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _leave_stdout()
        _fail(
            Refusal(Code.OUTPUT, f"The output can't be written: {error.strerror}.", ""),
            as_json=as_json,
        )
    except SlicewiseError as error:
        _fail(error.refusal, as_json=as_json)


def _take_any_output() -> None:
    """Let no character and no closed stdout end a command.

    What a site's character set lacks becomes a question mark.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _leave_stdout() -> None:
    """Send what is still to be written on stdout nowhere, so that Python's end is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(*, as_json: bool) -> int:
    """Run the command and return its exit code.

    With ``as_json``, usage errors are SlicewiseErrors, too: SW-USAGE, and SW-ABORTED for a question
    that was not answered with yes. Else Typer prints them.
    """
    try:
        # The name is the same where it runs by ``python -m``, as in the sandbox.
        returned = app(prog_name="slicewise", standalone_mode=False)
    except typer.Abort:
        if as_json:
            raise SlicewiseError(
                Code.ABORTED,
                "A question was not answered with yes: nothing was done.",
                "--yes answers it.",
            ) from None
        _typer_s_printer().rich_abort_error()
        return 1
    except _USAGE_ERROR as error:
        error.message = _plain(error.message)
        if as_json:
            command = error.ctx.command_path if error.ctx is not None else "slicewise"
            hint = f"See: {command} --help"
            raise InvalidInputError(Code.USAGE, error.format_message(), hint) from None
        _typer_s_printer().rich_format_error(error)
        return int(error.exit_code)
    return returned if isinstance(returned, int) else 0


def _plain(message: str) -> str:
    """Return a usage error's message without the words of the library that checked the value."""
    message = message.removeprefix("Value error, ")
    value = message.removeprefix("Input should be ")
    return message if value == message else f"It must be {value.partition(', unable to')[0]}."


def _typer_s_printer() -> Any:
    without_styles_where_plain()
    return import_module("typer.rich_utils")


def _fail(refusal: Refusal, *, as_json: bool) -> NoReturn:
    console = import_module("slicewise.cluster.runtime.console")
    if as_json:
        console.print_refusal_json(refusal, refusal.code.exit_code)
    else:
        console.print_refusal(refusal)
    sys.exit(refusal.code.exit_code)


def _leave_garbage() -> None:
    """Let Python not look for garbage: a command ends before it has made much.

    To look for it in all that was imported, now and then and twice at the end, took a quarter of
    the CPU of a command that asks the database.
    """
    gc.set_threshold(_GARBAGE_AFTER)
    atexit.register(gc.freeze)


if __name__ == "__main__":
    main()
