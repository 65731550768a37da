"""Commands of the operator: slicewise.lua in the site's job_submit.lua."""

import asyncio
import difflib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cluster.console import FittingTable, column, console, print_json
from cluster.daemon_client import DaemonClient
from cluster.errors import InvalidInputError, SlicewiseError
from cluster.settings import Settings, load_settings, settings_file
from cluster.slurm.commands import CommandSlurm
from cluster.wire import StatusAnswer
from slurm_plugin.cli.parts import Json
from slurm_plugin.site_script import (
    Wiring,
    calls_slicewise,
    has_lines,
    minimal,
    version_of,
    with_lines,
    without_lines,
)
from slurm_plugin.try_site_script import require_loads, require_works, tried

admission_app = typer.Typer(help="slicewise.lua in slurmctld.", no_args_is_help=True)

MODULE = Path(__file__).resolve().parents[1] / "slicewise.lua"
_NAME = "job_submit.lua"


@dataclass(frozen=True)
class Proposal:
    """What becomes of a site's script: ``before`` is None where there is none."""

    file: Path
    before: str | None
    after: str

    @property
    def diff(self) -> str:
        """Unified; "" if nothing changes."""
        before = (self.before or "").splitlines(keepends=True)
        after = self.after.splitlines(keepends=True)
        name = str(self.file)
        return "".join(difflib.unified_diff(before, after, name, f"{name} (proposed)"))


@admission_app.command(
    "install",
    epilog="Examples: slicewise admission install"
    " | slicewise admission install --file /etc/slurm/job_submit.lua --write-proposal",
)
def install(
    file: Annotated[
        Path | None, typer.Option(help="The site's script; else job_submit.lua beside slurm.conf.")
    ] = None,
    write_proposal: Annotated[
        bool, typer.Option("--write-proposal", help="Write FILE.slicewise-proposed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Try slicewise.lua under real Lua, and show how job_submit.lua would call it.

    Where there is no script, a minimal one is made, in mode observe. A script that is there is
    never changed: the difference is shown, and you put it in. For the trial the functions of the
    script are called once, with a job that asks for nothing.
    """
    settings = load_settings()
    proposal = _proposal(file or _site_script(), _wiring(settings))
    outcomes = asyncio.run(_try(proposal))
    written = _write(proposal, write_proposal)
    if as_json:
        print_json(
            {
                "file": str(proposal.file),
                "trial": outcomes,
                "diff": proposal.diff,
                "written": str(written) if written else None,
            }
        )
        return
    _print_proposal(proposal, written)


def off_file() -> Path:
    """The kill switch: while it is there slicewise.lua does nothing."""
    return settings_file().parent / "off"


@admission_app.command(
    "status", epilog="Examples: slicewise admission status | slicewise admission status --json"
)
def status(as_json: Json = False) -> None:
    """Show which slicewise.lua slurmctld runs, in which mode, and how the daemon is."""
    answer = asyncio.run(_status(load_settings()))
    on_disk, is_off = version_of(MODULE.read_text(encoding="utf-8")), off_file().exists()
    failure = answer if isinstance(answer, SlicewiseError) else None
    known = None if isinstance(answer, SlicewiseError) else answer
    advice = _advice(known, on_disk, is_off=is_off)
    if as_json:
        print_json({**_fields(known), "module_on_disk": on_disk, "off": is_off, "advice": advice})
    else:
        _print_standing(_rows(known, on_disk), advice)
    if failure is not None:
        raise failure


async def _status(settings: Settings) -> StatusAnswer | SlicewiseError:
    """What is known without the daemon is worth showing, too."""
    try:
        return await DaemonClient(settings.daemon).status()
    except SlicewiseError as error:
        return error


def _fields(answer: StatusAnswer | None) -> dict[str, object]:
    if answer is None:
        return {name: None for name in StatusAnswer.model_fields if name != "v"}
    return answer.model_dump(exclude={"v"})


def _print_standing(rows: dict[str, str], advice: Sequence[str]) -> None:
    out = console()
    out.print(FittingTable((column("part", rows), column("state", rows.values(), folds=True))))
    for line in advice:
        out.print(Text(line, style="yellow"), soft_wrap=True)


def _rows(answer: StatusAnswer | None, on_disk: str) -> dict[str, str]:
    here = {
        "slicewise.lua on disk": on_disk,
        "kill switch": f"{off_file()} is there" if off_file().exists() else "not set",
    }
    if answer is None:
        return {**here, "daemon": "gives no answer"}
    loaded = f"{answer.module}, mode {answer.module_mode}" if answer.module else "never asked"
    ago = "" if answer.asked_s is None else f", asked {time.time() - answer.asked_s:.0f} s ago"
    sees = "complete" if answer.complete else "Slurm does not answer"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(answer.decisions.items()))
    return {
        "slicewise.lua loaded": f"{loaded}{ago}",
        **here,
        "daemon": f"{answer.version}, mode {answer.mode}, on {answer.host}",
        "leads": "yes" if answer.leads else "no, another daemon does",
        "last look at Slurm": f"{time.time() - answer.observed_s:.1f} s ago, {sees}",
        "decisions": counts or "none yet",
    }


def _advice(answer: StatusAnswer | None, on_disk: str, *, is_off: bool) -> list[str]:
    """What differs from what it should be, and what to do about it."""
    advice = []
    if is_off:
        advice.append("slicewise.lua does nothing: slicewise admission on")
    if answer is None:
        return advice
    if not answer.module:
        advice.append(
            "slicewise.lua has not asked this daemon yet. Once a GPU job is submitted it should:"
            " is JobSubmitPlugins=lua set? slicewise admission install"
        )
    elif answer.module != on_disk:
        advice.append(
            f"slurmctld runs version {answer.module}, on disk is {on_disk}: touch job_submit.lua,"
            " slurmctld reads both anew at the next job."
        )
    if answer.module and answer.module_mode != answer.mode:
        advice.append(
            f"slicewise.lua is in mode {answer.module_mode}, the daemon in {answer.mode}: what"
            " that means says docs/daemon.md, Modes."
        )
    return advice


@admission_app.command("off", epilog="Example: slicewise admission off")
def off() -> None:
    """Make slicewise.lua do nothing from the next job on; slurmctld need not be touched.

    Jobs are then submitted and changed as without Slicewise. Slurm's limits stay in force for
    typed GPUs; untyped ones start above them.
    """
    path = off_file()
    try:
        path.touch()
        path.chmod(0o644)
    except OSError as error:
        raise _no_access(path, error) from None
    sys.stdout.write(f"{path} is there: slicewise.lua does nothing from the next job on.\n")


@admission_app.command("on", epilog="Example: slicewise admission on")
def on() -> None:
    """Let slicewise.lua work again after off."""
    path = off_file()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _no_access(path, error) from None
    sys.stdout.write(f"{path} is gone: slicewise.lua decides from the next job on.\n")


def _wiring(settings: Settings) -> Wiring:
    return Wiring(
        module=MODULE,
        socket=settings.daemon.admission_socket,
        off_file=off_file(),
        partitions=settings.cluster.partitions,
    )


def _site_script() -> Path:
    """Beside slurm.conf: $SLURM_CONF, else what slurmctld says, else /etc/slurm."""
    said = os.environ.get("SLURM_CONF") or _slurm_conf_of_slurmctld()
    return Path(said).parent / _NAME


def _slurm_conf_of_slurmctld() -> str:
    try:
        return asyncio.run(CommandSlurm().config())["SLURM_CONF"]
    except SlicewiseError:
        return "/etc/slurm/slurm.conf"


def _proposal(file: Path, wiring: Wiring) -> Proposal:
    """A script that loads slicewise.lua in lines of its own is left as it is."""
    try:
        before = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Proposal(file, None, minimal(wiring))
    except (OSError, UnicodeDecodeError) as error:
        raise _no_access(file, error) from None
    if calls_slicewise(before) and not has_lines(before):
        return Proposal(file, before, before)
    return Proposal(file, before, with_lines(before, wiring))


async def _try(proposal: Proposal) -> dict[str, str]:
    after = await tried(proposal.after)
    if proposal.before is not None and after["script"] != "loaded":
        # A mistake of the script itself is told with its own lines, not the proposal's.
        require_loads(await tried(proposal.before))
    if proposal.before is None:
        require_works(after, {})
    elif has_lines(proposal.after):
        require_works(after, await tried(without_lines(proposal.before)))
    else:
        require_works(after, after)
    return dict(after)


def _write(proposal: Proposal, write_proposal: bool) -> Path | None:
    """The file that was made, if any."""
    if proposal.before is None:
        path = proposal.file
    elif write_proposal and proposal.diff:
        path = proposal.file.with_name(f"{proposal.file.name}.slicewise-proposed")
    else:
        return None
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(proposal.after)
    except OSError as error:
        raise _no_access(path, error) from None
    return path


def _print_proposal(proposal: Proposal, written: Path | None) -> None:
    out = console()
    if not proposal.diff:
        out.print(f"{proposal.file} calls slicewise.lua already, and works under Lua.")
        return
    if proposal.before is not None:
        out.print(Text(proposal.diff), soft_wrap=True, end="")
    if written is not None:
        out.print(Text(f"Written: {written}"), soft_wrap=True)
    out.print(Text(_NEXT_NEW if proposal.before is None else _NEXT_OWN), soft_wrap=True)


_NEXT_NEW = """\
It works under Lua, in mode observe. slurm.conf needs JobSubmitPlugins=lua; slurmctld must be
restarted if that is new. Later changes of the file it reads by itself."""
_NEXT_OWN = """\
It works under Lua. Your script was not changed: put the lines in, all at once (mv, not an editor
that writes in place). slurmctld reads it again by itself."""


def _no_access(path: Path, error: OSError | UnicodeDecodeError) -> InvalidInputError:
    why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
    return InvalidInputError(
        "SW-ADMISSION-FILE", f"{path}: {why}.", f"Nothing was changed. {_remedy(path, error)}"
    )


def _remedy(path: Path, error: OSError | UnicodeDecodeError) -> str:
    match error:
        case FileExistsError():
            return "It was made before: look at it, or remove it and try again."
        case FileNotFoundError() | NotADirectoryError():
            return f"There must be a directory {path.parent}."
        case IsADirectoryError() | UnicodeDecodeError():
            return "A text file must be there, or none."
        case PermissionError():
            return "Do it as root or SlurmUser."
    return "Mend that, and try again."
