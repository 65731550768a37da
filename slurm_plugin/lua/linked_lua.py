"""Finds the Lua version that slurmctld links, and the interpreter of the same version."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.slurm.run_command import attempt

PLUGIN = "job_submit_lua.so"
_USUAL = ("/usr/lib/*/slurm-wlm", "/usr/lib64/slurm", "/usr/lib/slurm", "/opt/slurm/lib*/slurm")
_LIBRARY = re.compile(rb"liblua(?:-|\.so\.)?(5\.[1-9])")
"""The library's name in packages: liblua5.1.so.0, liblua-5.4.so, liblua.so.5.3."""
_DEADLINE_S = 5.0


def linked_version(plugin_dirs: Iterable[str]) -> str:
    """The Lua version of slurmctld's job_submit/lua plugin, such as ``5.4``.

    ``plugin_dirs`` are those of slurm.conf (PluginDir). If they are empty or lack the plugin, the
    usual directories are searched. Raises InvalidInputError (SW-ADMISSION-LUA) if no plugin is
    found, or if the plugins name no version or several.
    """
    plugins = [path for path in (Path(each) / PLUGIN for each in plugin_dirs) if path.is_file()]
    if not plugins:
        plugins = [path for each in _USUAL for path in Path("/").glob(f"{each[1:]}/{PLUGIN}")]
    versions = {
        str(match[1], "ascii") for path in plugins for match in _LIBRARY.finditer(_bytes(path))
    }
    if len(versions) == 1:
        return versions.pop()
    where = ", ".join(map(str, plugins))
    what = (
        f"{where} names {', '.join(sorted(versions)) or 'no Lua'}"
        if plugins
        else "that file is not here"
    )
    raise InvalidInputError(
        Code.ADMISSION_LUA,
        f"{PLUGIN} tells which Lua slurmctld links, but {what}.",
        "Run this on slurmctld's host, or name the version: --lua 5.4",
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def interpreter(version: str) -> str:
    """The command that runs this Lua version; "" if there is none on PATH.

    Debian calls it lua5.4; where only one version is installed, as on Enterprise Linux, it is
    called lua.
    """
    for name in (f"lua{version}", f"lua-{version}", "lua"):
        if shutil.which(name) is not None and await _version_of(name) == version:
            return name
    return ""


async def _version_of(name: str) -> str:
    try:
        reply = await attempt((name, "-e", "io.write(_VERSION)"), deadline_s=_DEADLINE_S)
    except UnreachableError:
        return ""
    return reply.output.strip().removeprefix("Lua ")
