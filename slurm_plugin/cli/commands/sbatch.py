"""``slicewise sbatch``: runs sbatch itself, with the request to show what Slicewise decides."""

import os
import signal
import sys
from typing import Annotated

import typer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError

EXPLAIN_VARIABLE = "SLICEWISE_EXPLAIN"
"""The variable by which slicewise.lua finds the request in the job's environment."""

SHELL_FUNCTION = f"""\
# sbatch that shows what Slicewise decides about each job. For bash, zsh and dash:
#     . /usr/share/slicewise/slicewise.sh      or      eval "$(slicewise sbatch --shell-function)"
# Plain sbatch again: unset -f sbatch
sbatch() {{
    {EXPLAIN_VARIABLE}=1 command sbatch "$@"
}}
"""

sbatch_app = typer.Typer()


@sbatch_app.command(
    context_settings={
        "help_option_names": ["--help"],  # sbatch has its own -h
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
    options_metavar="[OPTIONS] ARGS...",
    epilog="Examples: slicewise sbatch --gres=gpu:auto train.sh"
    " | slicewise sbatch --preview --gres=gpu:2g.20gb:1 train.sh"
    " | slicewise sbatch -- --help",
)
def sbatch(
    context: typer.Context,
    preview: Annotated[
        bool, typer.Option("--preview", help="Submit nothing, as sbatch --test-only does.")
    ] = False,
    shell_function: Annotated[
        bool,
        typer.Option(
            "--shell-function", help="Print a shell function sbatch that does the same, for eval."
        ),
    ] = False,
) -> None:
    """Run sbatch, and show what Slicewise decides about the job.

    The options below come first; all that follows is sbatch's own, and so are output and exit code.
    With --export=NONE or a list, sbatch does not pass the request on to Slurm: add
    SLICEWISE_EXPLAIN to the list.
    """
    if shell_function:
        sys.stdout.write(SHELL_FUNCTION)
        return
    _become_sbatch((*(("--test-only",) if preview else ()), *context.args))


def _become_sbatch(arguments: tuple[str, ...]) -> None:
    # Python ignores these signals, and the program that takes its place would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    environment = {**os.environ, EXPLAIN_VARIABLE: "1"}
    try:
        os.execvpe("sbatch", ("sbatch", *arguments), environment)  # noqa: S606
    except OSError as error:
        raise OutsideError(
            Code.SLURM_FAILED, f"sbatch can't be run: {error.strerror}.", "Is it on PATH?"
        ) from None
