"""Runs a job_submit.lua under real Lua, without slurmctld, and reports the outcome of each step."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.slurm.run_command import Reply, attempt
from slicewise.slurm_plugin.lua.linked_lua import interpreter

_TRIAL = Path(__file__).with_suffix(".lua")
_LIBRARIES = {"socket": "lua-socket", "socket.unix": "lua-socket", "cjson": "lua-cjson"}
"""Packages of the libraries that slicewise.lua requires, as Debian and Enterprise Linux call
them."""
_DEADLINE_S = 10.0
_FUNCTIONS = ("slurm_job_submit", "slurm_job_modify")


async def tried(script: str, version: str) -> Mapping[str, str]:
    """The outcome of each step of the trial; ``error`` is what the script logged as an error.

    The script's functions are called once each, with a job that asks for nothing, under Lua
    ``version``, such as ``5.4``: slurmctld's own. Raises InvalidInputError (SW-ADMISSION-LUA) if
    that Lua or a library that slicewise.lua needs is missing, and for a script that does not end in
    time, or ends Lua itself.
    """
    lua = await interpreter(version)
    if not lua:
        raise _failed(
            f"lua{version} is not on PATH",
            f"Install it (apt install lua{version} lua-socket lua-cjson): slurmctld has that Lua.",
        )
    with TemporaryDirectory(prefix="slicewise-") as directory:
        path = Path(directory) / "job_submit.lua"
        path.write_text(script, encoding="utf-8")
        reply = await _run(lua, path)
    outcomes = dict(line.split("\t", 1) for line in reply.output.splitlines() if "\t" in line)
    if not outcomes.keys() >= _LIBRARIES.keys():
        what = reply.complaint or f"it ended with status {reply.status}"
        raise _failed(what, "Report this: the trial itself failed.")
    for library, package in _LIBRARIES.items():
        if outcomes[library] != "found":
            raise _failed(
                f"Lua {version}: {outcomes[library]}",
                f"apt install {package}: slurmctld's Lua needs it.",
            )
    if outcomes.pop("trial", "") != "ended":
        raise _failed(
            "the script ended the interpreter, as os.exit does",
            "It would end slurmctld, too: fix the script first; nothing was written.",
        )
    return {key: text.replace(str(path), "job_submit.lua") for key, text in outcomes.items()}


async def _run(lua: str, path: Path) -> Reply:
    try:
        return await attempt((lua, str(_TRIAL), str(path)), deadline_s=_DEADLINE_S)
    except UnreachableError:
        raise _failed(
            f"the script did not end within {_DEADLINE_S:g} s",
            "slurmctld would hang: fix the script first; nothing was written.",
        ) from None


def require_loads(script: Mapping[str, str]) -> None:
    """Raise InvalidInputError (SW-ADMISSION-LUA) unless the script loads."""
    if script["script"] != "loaded":
        raise _failed(script["script"], "Fix the script first; nothing was written.")


def require_works(proposed: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Raise InvalidInputError (SW-ADMISSION-LUA) unless the script loads together with
    slicewise.lua, and both functions return what they return without our lines.

    ``before`` is the outcome without our lines, {} if there was no script.
    """
    require_loads(proposed)
    if "slicewise" in proposed.get("error", ""):
        raise _failed(proposed["error"], "Install what it misses on slurmctld's host.")
    for name in _FUNCTIONS:
        expected = _expected(before, name)
        if proposed[name] != expected:
            raise _failed(
                f"{name} gives {proposed[name]!r} with Slicewise's lines, but {expected!r} without"
                " them",
                "Put the lines in yourself: docs/how-to/install.md, section 5.",
            )


def _expected(before: Mapping[str, str], name: str) -> str:
    """The expected outcome: a function that is missing, or returns nothing, counts as SUCCESS."""
    outcome = before.get(name, "is no function")
    return "0" if outcome in {"is no function", "nil"} else outcome


def _failed(what: str, hint: str) -> InvalidInputError:
    return InvalidInputError(Code.ADMISSION_LUA, f"job_submit.lua under real Lua: {what}.", hint)
