"""What must be installed, and the line that installs it. Nothing here installs anything."""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host import libraries
from slicewise.sandbox.servers import triton

SLURM_VARIABLE = "SLICEWISE_SANDBOX_SLURM"
"""The variable with the prefix of a Slurm other than the distribution's: /opt/slurm-25.11."""


def plugins(prefix: str) -> str:
    """Where Slurm's plugins are, as a pattern; ``prefix`` is "" for the distribution's Slurm."""
    return f"{prefix}/lib/slurm" if prefix else "/usr/lib/*/slurm-wlm"


def search_path(prefix: str) -> str:
    """PATH of everything in the sandbox; servers are in sbin, which a user's PATH may lack."""
    own = f"{prefix}/sbin:{prefix}/bin:" if prefix else ""
    return f"{own}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


PREFIX = os.environ.get(SLURM_VARIABLE, "").rstrip("/")
SEARCH_PATH = search_path(PREFIX)

REQUIRED_FILES: tuple[tuple[str, str], ...] = (
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("slurmdbd", "slurmdbd"),
    ("sbatch", "slurm-client"),
    (f"{plugins(PREFIX)}/job_submit_lua.so", "slurm-wlm-basic-plugins"),
    (f"{plugins(PREFIX)}/accounting_storage_mysql.so", "slurm-wlm-mysql-plugin"),
    ("munged", "munge"),
    ("mariadbd", "mariadb-server-core"),
    ("haproxy", "haproxy"),
    ("openssl", "openssl"),
    ("ip", "iproute2"),
    ("/usr/lib/*/lua/5.*/socket/unix.so", "lua-socket"),
    ("/usr/lib/*/lua/5.*/cjson.so", "lua-cjson"),
    ("/usr/lib/*/libnss_wrapper.so", "libnss-wrapper"),
    *libraries.REQUIRED_FILES,
)
"""A command, or a pattern of an absolute path, and the Debian or Ubuntu package that has it."""

EVERYTHING = (*REQUIRED_FILES, *triton.REQUIRED_FILES)
"""``REQUIRED_FILES`` and what Triton needs."""

_TOKENS = f"{plugins(PREFIX)}/auth_jwt.so"
BESIDE = () if PREFIX else ((_TOKENS, "slurm-wlm-jwt-plugin"),)
"""What the sandbox uses where it is there, and runs without; another Slurm has it or not."""


def missing_packages(required: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The packages of everything in ``required`` that this machine lacks, each once."""
    return tuple(dict.fromkeys(package for what, package in required if not _present(what)))


def has_tokens() -> bool:
    """Whether this Slurm can make JSON web tokens: its plugin, and the library that loads."""
    return _present(_TOKENS) and _present("/usr/lib/*/libjwt.so.*")


def require_slurm(prefix: str) -> None:
    """Raise SlicewiseError (SW-PROGRAM) if ``prefix`` is given and users can't run its Slurm.

    Without this check the distribution's, which comes after it in the path, would run instead.
    """
    if not prefix:
        return
    program = Path(prefix, "sbin", "slurmctld")
    if not program.is_file():
        why = f"{SLURM_VARIABLE} is {prefix}, where there is no sbin/slurmctld"
    elif closed := [str(each) for each in program.parents if not each.stat().st_mode & 0o001]:
        why = f"{SLURM_VARIABLE} is {prefix}, but other users may not enter {closed[-1]}"
    else:
        return
    raise SlicewiseError(
        Code.PROGRAM,
        f"{why}.",
        "Name a prefix that all users can read; make slurm VERSION=... builds one.",
    )


def _present(what: str) -> bool:
    if what.startswith("/"):
        return any(Path("/").glob(what[1:]))
    return shutil.which(what, path=SEARCH_PATH) is not None


def install_line(packages: Iterable[str], *, as_root: bool) -> str:
    """The command that installs them."""
    sudo = "" if as_root else "sudo "
    return f"{sudo}apt-get install --no-install-recommends {' '.join(packages)}"


def require(required: Iterable[tuple[str, str]]) -> None:
    """Raise SlicewiseError (SW-PROGRAM), with the install line, if any is missing.

    Raises SlicewiseError (SW-PROGRAM) if there is no Slurm where the variable says.
    """
    require_slurm(PREFIX)
    packages = missing_packages(required)
    if packages:
        line = install_line(packages, as_root=os.geteuid() == 0)
        raise SlicewiseError(
            Code.PROGRAM,
            f"The sandbox needs packages that are not installed: {', '.join(packages)}.",
            f"Install them: {line}",
        )


if __name__ == "__main__":
    wanted = (*EVERYTHING, *BESIDE)
    found = dict.fromkeys(package for _, package in wanted)
    names = found if sys.argv[1:] == ["--all"] else missing_packages(wanted)
    sys.stdout.write(f"{' '.join(names)}\n")
