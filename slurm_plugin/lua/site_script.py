"""Edits a site's job_submit.lua as text: puts slicewise's protected lines in, or makes a minimal
one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BEGIN, END = "-- slicewise begin", "-- slicewise end"
_TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "admission"
_LOADED = re.compile(r'"([^"\n]*/slicewise\.lua)"')
_BLOCK = re.compile(rf"^{BEGIN}.*?^{END}$\n?", re.MULTILINE | re.DOTALL)
_MODE = re.compile(r'^\s*mode = "(observe|advise|enforce)"', re.MULTILINE)
_VERSION = re.compile(r'^M\.VERSION = "([^"]*)"', re.MULTILINE)
_HEAD = """\
-- Called by slurmctld for each job; read again whenever this file is changed. Both functions must
-- be there, else slurmctld does not start: they stay if slicewise's lines go.
function slurm_job_submit(job_desc, part_list, submit_uid)
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

"""
_LAST = "return slurm.SUCCESS\n"

Mode = Literal["observe", "advise", "enforce"]


@dataclass(frozen=True)
class Wiring:
    """The values in the protected lines.

    Attributes:
        module: path of slicewise.lua.
        socket: path of the daemon's admission socket.
        off_file: path of the kill switch.
        partitions: the managed partitions.
        without_gpu: what happens to jobs in managed partitions that ask for no GPU.
        notices: whether users of accepted jobs are told without having asked.
        shares: most ``cpus`` and ``memory_mib`` that a job may have for one GPU, by GPU type.
        beside: partitions that are not managed, but have nodes of managed ones.
    """

    module: Path
    socket: Path
    off_file: Path
    partitions: tuple[str, ...]
    without_gpu: Literal["refuse", "allow"] = "refuse"
    notices: Literal["asked", "always"] = "asked"
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    beside: tuple[str, ...] = ()


def minimal(wiring: Wiring) -> str:
    """A script for a site that has none, in mode observe, in which every site begins."""
    return f"{_HEAD}{_lines(wiring, 'observe')}\n{_LAST}"


def loading(module: Path) -> str:
    """A script that only loads slicewise.lua, and fails if loading fails."""
    return f"dofile({_lua_string(module)})\n"


def named_module(script: str) -> str:
    """The slicewise.lua that a site's script loads; "" if none is found in it."""
    match = _LOADED.search(script)
    return match[1] if match else ""


def reading(script: Path) -> str:
    """A script that fails if Lua can't read a site's script; it does not run that."""
    return f"assert(loadfile({_lua_string(script)}))\n"


def with_lines(script: str, wiring: Wiring) -> str:
    """A site's script with the protected lines added at its end, or brought up to date.

    New lines come before a last ``return``, after which Lua allows nothing. Existing lines keep
    their mode.
    """
    if has_lines(script):
        fresh = _lines(wiring, _mode(script))
        return _BLOCK.sub(lambda _: fresh, script, count=1)
    kept, last = _before_last_return(script)
    return f"{kept.rstrip()}\n\n{_lines(wiring, 'observe')}\n{last}"


def without_lines(script: str) -> str:
    """The script without the protected lines."""
    return _BLOCK.sub("", script, count=1)


def has_lines(script: str) -> bool:
    """Whether the script has the protected lines."""
    return _BLOCK.search(script) is not None


def calls_slicewise(script: str) -> bool:
    """Whether the script loads slicewise.lua in any way."""
    return "slicewise.lua" in script


def version_of(module: str) -> str:
    """The version that the text of a slicewise.lua states; "" if it states none."""
    match = _VERSION.search(module)
    return match[1] if match else ""


def _mode(script: str) -> Mode:
    block = _BLOCK.search(script)
    match = _MODE.search(block[0]) if block else None
    return match[1] if match else "observe"  # type: ignore[return-value]


def _before_last_return(script: str) -> tuple[str, str]:
    """The script, split before its last line of code if that is a ``return`` at the line's start.

    Otherwise the whole script, and a ``return`` to add.
    """
    lines = script.splitlines(keepends=True)
    code = [n for n, line in enumerate(lines) if line.strip() and not line.startswith("--")]
    if code and re.match(r"return\b", lines[code[-1]]):
        return "".join(lines[: code[-1]]), "".join(lines[code[-1] :])
    return script, _LAST


def _lines(wiring: Wiring, mode: Mode) -> str:
    from jinja2 import (  # noqa: PLC0415 -- only who writes one, not who asks for the status
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )

    environment = Environment(  # noqa: S701 -- no HTML: every value is quoted as Lua quotes
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    environment.filters["lua"] = _lua_string
    return environment.get_template("lines.lua.j2").render(
        module=wiring.module,
        socket=wiring.socket,
        off_file=wiring.off_file,
        partitions=wiring.partitions,
        without_gpu=wiring.without_gpu,
        notices=wiring.notices,
        shares=wiring.shares,
        beside=wiring.beside,
        mode=mode,
    )


def _lua_string(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
