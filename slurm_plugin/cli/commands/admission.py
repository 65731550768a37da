"""``slicewise admission``: slicewise.lua in the site's job_submit.lua."""

import asyncio
import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.gpus.mig_profiles import cost_millislices, whole_board, whole_cost
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import StatusAnswer, StatusRequest
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings, settings_file
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.commands.adopt import adopt
from slicewise.slurm_plugin.cli.views.admission import AdmissionStatus, Here, advice, print_status
from slicewise.slurm_plugin.common.job_submit import job_submit_script
from slicewise.slurm_plugin.lua.linked_lua import linked_version
from slicewise.slurm_plugin.lua.site_script import (
    Wiring,
    calls_slicewise,
    has_lines,
    loading,
    minimal,
    named_module,
    reading,
    version_of,
    with_lines,
    without_lines,
)
from slicewise.slurm_plugin.lua.try_site_script import require_loads, require_works, tried
from slicewise.slurm_plugin.rules.admission.partitions_beside import partitions_beside
from slicewise.slurm_plugin.rules.admission.shares import GpuSize, shares

admission_app = typer.Typer(
    no_args_is_help=True,
    help="slicewise.lua in slurmctld.",
    epilog="Examples: slicewise admission install | slicewise admission status",
)
admission_app.command(
    "adopt",
    epilog="Examples: slicewise admission adopt --dry-run | slicewise admission adopt",
)(adopt)


def lua_module(beside: Path, prefix: Path) -> Path:
    """Return the slicewise.lua that job_submit.lua should name.

    The one ``beside`` the code, or that of the wheel in share/ of the environment ``prefix``: its
    path stays the same when the environment is made with another Python.
    """
    shared = prefix / "share" / "slicewise" / "lua" / beside.name
    is_installed = beside.is_relative_to(prefix.resolve()) and shared.exists()
    return shared if is_installed else beside


MODULE = lua_module(Path(__file__).resolve().parents[2] / "lua" / "slicewise.lua", Path(sys.prefix))
_NAME = "job_submit.lua"


@dataclass(frozen=True)
class Proposal:
    """A proposed change of a site's script; ``before`` is None if there is no script yet."""

    file: Path
    before: str | None
    after: str

    @property
    def diff(self) -> str:
        """The change as a unified diff; "" if nothing changes."""
        before = (self.before or "").splitlines(keepends=True)
        after = self.after.splitlines(keepends=True)
        name = str(self.file)
        return "".join(difflib.unified_diff(before, after, name, f"{name} (proposed)"))


@dataclass(frozen=True)
class LuaTrial:
    """How slicewise.lua was tried, and what job_submit.lua lacks."""

    file: str
    lua: str
    trial: Mapping[str, str]
    diff: str
    written: str | None


@admission_app.command(
    "install",
    epilog="Examples: slicewise admission install"
    " | slicewise admission install --file /etc/slurm/job_submit.lua --write-proposal",
)
def install(
    file: Annotated[
        Path | None,
        typer.Option(help="The site's script; by default job_submit.lua beside slurm.conf."),
    ] = None,
    write_proposal: Annotated[
        bool, typer.Option("--write-proposal", help="Write FILE.slicewise-proposed.")
    ] = False,
    lua: Annotated[
        str,
        typer.Option(
            help="slurmctld's Lua version, such as 5.4; by default the one that its plugin links."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Test slicewise.lua under slurmctld's Lua, and show how job_submit.lua should call it.

    If there is no script, a minimal one is written, in mode observe. An existing script is never
    changed: the difference is shown for you to put in. For the test, the functions of the script
    are called once, with a job that requests nothing.
    """
    settings = load_settings()
    proposal = _proposal(file or site_script(settings), _wiring(settings))
    version = lua or _linked_version(settings)
    outcomes = asyncio.run(_try(proposal, version))
    written = _write(proposal, write_proposal)
    if as_json:
        path = str(written) if written else None
        print_json(LuaTrial(str(proposal.file), version, outcomes, proposal.diff, path))
        return
    _print_proposal(proposal, written, version)


def proposed_script(settings: Settings) -> str:
    """Return the site's job_submit.lua with the protected lines, or a minimal one.

    Raises UnreachableError (SW-SLURM-DOWN), InvalidInputError (SW-ADMISSION-FILE).
    """
    return _proposal(site_script(settings), _wiring(settings)).after


def off_file() -> Path:
    """Return the path of the kill switch: while the file exists, slicewise.lua does nothing."""
    return settings_file().parent / "off"


@admission_app.command(
    "status", epilog="Examples: slicewise admission status | slicewise admission status --json"
)
def status(as_json: Json = False) -> None:
    """Show which slicewise.lua slurmctld runs, in which mode, and the daemon's state.

    Exits 6 if the daemon does not answer.
    """
    settings = load_settings()
    answer = _status(settings)
    failure = answer if isinstance(answer, SlicewiseError) else None
    known = None if isinstance(answer, SlicewiseError) else answer
    version = version_of(MODULE.read_text(encoding="utf-8"))
    here = Here(version, off_file(), problem(settings), has_old_lines=has_old_lines(settings))
    now_s = wall_s()
    shown = AdmissionStatus(known, here, advice(known, here, now_s))
    if as_json:
        print_json(shown)
    else:
        print_status(shown, now_s)
    if failure is not None:
        raise failure


def problem(settings: Settings) -> str:
    """Say why slurmctld's Lua can't run slicewise.lua, or can't read the script that loads it.

    "" if it can, or if no plugin is here. The site's script is not run.
    """
    try:
        version = _linked_version(settings)
    except InvalidInputError:
        return ""
    try:
        require_loads(asyncio.run(tried(loading(MODULE), version)))
        if (script := site_script(settings)).exists():
            require_loads(asyncio.run(tried(reading(script), version)))
            named = Path(named_module(script.read_text(encoding="utf-8", errors="replace")))
            if named.is_file() and named != MODULE:
                require_loads(asyncio.run(tried(loading(named), version)))
    except InvalidInputError as error:
        return error.refusal.message
    return ""


def has_old_lines(settings: Settings) -> bool:
    """Whether job_submit.lua has other lines of Slicewise than would be proposed now.

    False if that is unknown: Slurm does not list its nodes, or the script can't be read.
    """
    try:
        proposal = _proposal(site_script(settings), _wiring(settings))
    except SlicewiseError:
        return False
    return proposal.before is not None and has_lines(proposal.before) and bool(proposal.diff)


def _status(settings: Settings) -> StatusAnswer | SlicewiseError:
    """Ask the daemon; return its failure instead of raising, so that the rest can be shown."""
    try:
        return DaemonClient(settings.daemon).call(StatusRequest())
    except SlicewiseError as error:
        return error


@admission_app.command("off", epilog="Example: slicewise admission off")
def off() -> None:
    """Switch slicewise.lua off from the next job on, without touching slurmctld or the daemon.

    It works without the daemon. Jobs are then submitted and changed as without Slicewise. Slurm's
    limits stay in force for typed GPUs; jobs with untyped GPUs can start beyond them.
    """
    path = off_file()
    try:
        path.touch()
        path.chmod(0o644)
    except OSError as error:
        raise _no_access(path, error) from None
    sys.stdout.write(f"{path} exists: slicewise.lua does nothing from the next job on.\n")


@admission_app.command("on", epilog="Example: slicewise admission on")
def on() -> None:
    """Switch slicewise.lua on again after off."""
    path = off_file()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _no_access(path, error) from None
    sys.stdout.write(f"{path} is gone: slicewise.lua decides from the next job on.\n")


def _wiring(settings: Settings) -> Wiring:
    """Gather everything that the lines in job_submit.lua contain.

    Raises UnreachableError (SW-SLURM-DOWN) if Slurm does not list its nodes.
    """
    nodes = _nodes(settings)
    managed = settings.cluster.partitions
    return Wiring(
        module=MODULE,
        socket=settings.daemon.admission_socket,
        off_file=off_file(),
        partitions=managed,
        without_gpu=settings.admission.without_gpu,
        notices=settings.admission.notices,
        shares=_shares(settings, nodes),
        beside=partitions_beside(nodes, frozenset(managed)),
    )


def _shares(settings: Settings, nodes: tuple[NodeView, ...]) -> Mapping[str, Mapping[str, int]]:
    """Return the most CPUs and memory that come with one GPU, by GRES type; {} without bounds."""
    cpus, memory_gib = settings.admission.cpus_per_slice, settings.admission.memory_gib_per_slice
    models, one = settings.models, Fraction(1)
    sizes = {
        kind: GpuSize(
            models[kind],
            cost_millislices(board, kind, one),
            whole_board(board, one) if kind in settings.whole_boards else None,
        )
        for kind, board in settings.boards_by_type.items()
    } | {
        kind: GpuSize(model, whole_cost(one))
        for model, gpu in settings.gpus.items()
        for kind in gpu.whole
    }
    sizes |= {name: GpuSize("", cost) for name, cost in settings.shared.costs.items()}
    memory_mib = memory_gib * 1024 if isinstance(memory_gib, float) else memory_gib
    partitions = frozenset(settings.cluster.partitions)
    own = (node for node in nodes if node.is_in(partitions))
    return shares(sizes, own, cpus, memory_mib)


def _nodes(settings: Settings) -> tuple[NodeView, ...]:
    if not _may_ask_slurm():
        raise _no_nodes("there is no slurm.conf here.")
    try:
        return asyncio.run(open_slurm(settings).nodes())
    except UnreachableError as error:
        raise _no_nodes(error.refusal.message) from None


def _may_ask_slurm() -> bool:
    """Whether Slurm's commands may be run: if $SLURM_CONF is missing, they search the network."""
    conf = os.environ.get("SLURM_CONF")
    return not conf or Path(conf).exists()


def _no_nodes(why: str) -> UnreachableError:
    return UnreachableError(
        Code.SLURM_DOWN,
        f"The proposed lines depend on nodes' GPUs and partitions: {why}",
        "Try again once slurmctld answers.",
    )


def site_script(settings: Settings) -> Path:
    """Return the path of job_submit.lua, beside the slurm.conf that $SLURM_CONF or slurmctld names.

    If neither names one, it is in /etc/slurm.
    """
    said = "" if os.environ.get("SLURM_CONF") else _said_by_slurmctld(settings, "SLURM_CONF")
    return Path(said).with_name(_NAME) if said else job_submit_script()


def _said_by_slurmctld(settings: Settings, name: str) -> str:
    """Return one of slurmctld's settings; "" if it does not answer or has none of that name."""
    try:
        return asyncio.run(open_slurm(settings).config()).get(name, "")
    except SlicewiseError:
        return ""


def _linked_version(settings: Settings) -> str:
    """Return the Lua version that slurmctld's plugin links, such as ``5.4``.

    Raises InvalidInputError (SW-ADMISSION-LUA) if no plugin tells it.
    """
    said = _said_by_slurmctld(settings, "PluginDir") if _may_ask_slurm() else ""
    return linked_version(said.split(":") if said else ())


def _proposal(file: Path, wiring: Wiring) -> Proposal:
    """Build the proposal; a script that loads slicewise.lua in lines of its own stays as it is.

    Raises InvalidInputError (SW-ADMISSION-FILE) if the script can't be read.
    """
    try:
        before = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Proposal(file, None, minimal(wiring))
    except (OSError, UnicodeDecodeError) as error:
        raise _no_access(file, error) from None
    if calls_slicewise(before) and not has_lines(before):
        return Proposal(file, before, before)
    return Proposal(file, before, with_lines(before, wiring))


async def _try(proposal: Proposal, version: str) -> dict[str, str]:
    after = await tried(proposal.after, version)
    if proposal.before is not None and after["script"] != "loaded":
        # Report a mistake of the site's script with its own line numbers, not the proposal's.
        require_loads(await tried(proposal.before, version))
    if proposal.before is None:
        require_works(after, {})
    elif has_lines(proposal.after):
        require_works(after, await tried(without_lines(proposal.before), version))
    else:
        require_works(after, after)
    return dict(after)


def _write(proposal: Proposal, write_proposal: bool) -> Path | None:
    """Write the new script, or the proposal if asked for; return its path, None if none is."""
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


def _print_proposal(proposal: Proposal, written: Path | None, version: str) -> None:
    out = console()
    if not proposal.diff:
        out.print(f"{proposal.file} calls slicewise.lua already, and works under Lua {version}.")
        return
    if proposal.before is not None:
        out.print(Text(proposal.diff), soft_wrap=True, end="")
    if written is not None:
        out.print(Text(f"Written: {written}"), soft_wrap=True)
    following = _NEXT_NEW if proposal.before is None else _NEXT_OWN
    out.print(Text(following.format(version=version)), soft_wrap=True)


_NEXT_NEW = """\
It works under Lua {version}, in mode observe. slurm.conf needs JobSubmitPlugins=lua; slurmctld
must be restarted if that is new. It reads later changes of the file by itself."""
_NEXT_OWN = """\
It works under Lua {version}. Your script was not changed: put the lines in, all at once (mv, not
an editor that writes in place). slurmctld reads it again by itself."""


def _no_access(path: Path, error: OSError | UnicodeDecodeError) -> InvalidInputError:
    why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
    return InvalidInputError(
        Code.ADMISSION_FILE, f"{path}: {why}.", f"Nothing was changed. {_remedy(path, error)}"
    )


def _remedy(path: Path, error: OSError | UnicodeDecodeError) -> str:
    match error:
        case FileExistsError():
            return "It exists already: look at it, or remove it and try again."
        case FileNotFoundError() | NotADirectoryError():
            return f"The directory {path.parent} must exist."
        case IsADirectoryError() | UnicodeDecodeError():
            return "A text file must be there, or none."
        case PermissionError():
            return "Run this as root or SlurmUser."
    return "Fix that, and try again."
