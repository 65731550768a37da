"""A site's job_submit.lua as text: slicewise's protected lines in it, or a whole minimal one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BEGIN, END = "-- slicewise begin", "-- slicewise end"
_TEMPLATES = Path(__file__).resolve().parents[1] / "templates" / "admission"
_BLOCK = re.compile(rf"^{BEGIN}.*?^{END}$\n?", re.MULTILINE | re.DOTALL)
_MODE = re.compile(r'^\s*mode = "(observe|advise|enforce)"', re.MULTILINE)
_VERSION = re.compile(r'^M\.VERSION = "([^"]*)"', re.MULTILINE)
_HEAD = "-- Called by slurmctld for each job; read again whenever this file is changed.\n\n"
_LAST = "return slurm.SUCCESS\n"

Mode = Literal["observe", "advise", "enforce"]


@dataclass(frozen=True)
class Wiring:
    """What the protected lines say.

    Attributes:
        module: slicewise.lua.
        socket: where it asks the daemon.
        off_file: the kill switch.
        partitions: the managed ones.
        without_gpu: what becomes of jobs there that ask for no GPU.
        shares: what a job may have for one GPU of a type, by type: ``cpus``, ``memory_mib``.
        beside: partitions that are not managed, on nodes of those that are.
    """

    module: Path
    socket: Path
    off_file: Path
    partitions: tuple[str, ...]
    without_gpu: Literal["refuse", "allow"] = "refuse"
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    beside: tuple[str, ...] = ()


def minimal(wiring: Wiring) -> str:
    """The script of a site that has none; in mode observe, as every beginning."""
    return f"{_HEAD}{_lines(wiring, 'observe')}\n{_LAST}"


def loading(module: Path) -> str:
    """A script that only loads slicewise.lua, and fails if that does."""
    return f"dofile({_lua_string(module)})\n"


def with_lines(script: str, wiring: Wiring) -> str:
    """A site's script with the lines at its end, or with those that it has brought up to date.

    They come before a last ``return``, after which Lua allows nothing. The mode that stands there
    stays.
    """
    if has_lines(script):
        fresh = _lines(wiring, _mode(script))
        return _BLOCK.sub(lambda _: fresh, script, count=1)
    kept, last = _before_last_return(script)
    return f"{kept.rstrip()}\n\n{_lines(wiring, 'observe')}\n{last}"


def without_lines(script: str) -> str:
    """The script as it is without the lines."""
    return _BLOCK.sub("", script, count=1)


def has_lines(script: str) -> bool:
    """Whether the lines are in it."""
    return _BLOCK.search(script) is not None


def calls_slicewise(script: str) -> bool:
    """Whether it loads slicewise.lua in whatever way."""
    return "slicewise.lua" in script


def version_of(module: str) -> str:
    """The version that a slicewise.lua says it has; "" if it says none."""
    found = _VERSION.search(module)
    return found[1] if found else ""


def _mode(script: str) -> Mode:
    block = _BLOCK.search(script)
    found = _MODE.search(block[0]) if block else None
    return found[1] if found else "observe"  # type: ignore[return-value]


def _before_last_return(script: str) -> tuple[str, str]:
    """The script in two, where its last line of code is a ``return`` that begins the line."""
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
        shares=wiring.shares,
        beside=wiring.beside,
        mode=mode,
    )


def _lua_string(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
