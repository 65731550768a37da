"""A real tritonserver for the sandbox's users, out of the Python package nvidia-pytriton.

The package carries tritonserver 2.51 with its Python backend. Jobs run as users who may be able to
read neither the project's clone nor its virtual environment, so what the server needs is linked or
copied into the sandbox: the server, its libraries, the stub process of the Python backend for the
running Python, and numpy. The rest comes from the machine: libpython and its standard library.
"""

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The Python whose numpy is staged, hence the one that the backend's stub process embeds."""

SYSTEM_LIBPYTHON = Path(f"/usr/lib/{platform.machine()}-linux-gnu/libpython{PYTHON}.so.1.0")

REQUIRED_FILES: tuple[tuple[str, str], ...] = ((str(SYSTEM_LIBPYTHON), f"libpython{PYTHON}"),)
"""(file, apt package that brings it), as Debian and Ubuntu name them."""

_TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "triton"
_OTHERS_READ, _OTHERS_SEARCH = 0o004, 0o001


def stage(bin_dir: Path, triton_dir: Path) -> Path:
    """Make ``bin_dir/tritonserver`` ready for every user who can reach both directories.

    Returns the path of that command. It adds the backend directory, a shared-memory prefix of its
    own and lean defaults, then hands on its arguments. What is there from an earlier call is
    replaced. Raises InvalidInputError (SW-PROGRAM) naming the piece that is missing.
    """
    pytriton, numpy = _package("pytriton", "nvidia-pytriton"), _package("numpy", "numpy")
    library, home = _libpython()
    shutil.rmtree(triton_dir, ignore_errors=True)
    for source, destination in _pieces(pytriton, numpy, triton_dir):
        _mirror(source, destination)
    _open_directories(triton_dir)
    server_dir = triton_dir / "pytriton" / "tritonserver"
    wrapper = bin_dir / "tritonserver"
    bin_dir.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(
        _wrapper_text(
            python_home=home,
            library_path=library.parent,
            server=server_dir / "bin" / "tritonserver",
            backends=server_dir / "backends",
            shm_prefix=_shm_prefix(triton_dir),
        ),
        encoding="utf-8",
    )
    wrapper.chmod(0o755)
    return wrapper


def remove_shared_memory(triton_dir: Path, shm: Path = Path("/dev/shm")) -> int:  # noqa: S108
    """Remove what killed servers of that directory left in shared memory; returns how many.

    A server that ends by itself removes its own regions (1 MiB per model instance); one that is
    killed can't. To be called when no server of the directory runs any more.
    """
    left = tuple(shm.glob(f"{_shm_prefix(triton_dir)}*"))
    for region in left:
        region.unlink(missing_ok=True)
    return len(left)


def remove_temporary(uids: Collection[int], place: Path = Path("/tmp")) -> None:  # noqa: S108
    """Remove all folders of these users in ``place``; none of their processes may run any more.

    Killed jobs leave such folders: replicas leave that of their sockets, Python backends that of an
    environment.
    """
    for folder in place.iterdir():
        with suppress(OSError):
            if folder.lstat().st_uid in uids:
                shutil.rmtree(folder, ignore_errors=True)


def _shm_prefix(triton_dir: Path) -> str:
    """Different for each sandbox, as they share the machine's /dev/shm."""
    return f"slicewise_{sha256(bytes(triton_dir.resolve())).hexdigest()[:12]}_"


def _wrapper_text(**values: Path | str) -> str:
    jinja = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # shell, not HTML: each value goes through the quote filter
    )
    jinja.filters["quote"] = lambda value: quote(str(value))
    return jinja.get_template("tritonserver.sh.j2").render(values)


def _package(module: str, distribution: str) -> Path:
    """Where a Python package lies, without importing it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise InvalidInputError(
            Code.PROGRAM,
            f"The Python package {distribution} is not installed, so there is no tritonserver.",
            "Install the extra that brings it: pip install 'slicewise[sandbox]', with Python 3.11 "
            "or 3.12: from 3.13 on there is none.",
        )
    return Path(spec.origin).parent


def _pieces(pytriton: Path, numpy: Path, triton_dir: Path) -> tuple[tuple[Path, Path], ...]:
    """Sources and targets; depths stay those of site-packages, which the libraries' RPATHs need."""
    source, target = pytriton / "tritonserver", triton_dir / "pytriton" / "tritonserver"
    backend = target / "backends" / "python"
    stub = "triton_python_backend_stub"
    return (
        (source / "bin", target / "bin"),
        (source / "backends" / "python", backend),
        (source / "python_backend_stubs" / PYTHON / stub, backend / stub),
        (pytriton.parent / "nvidia_pytriton.libs", triton_dir / "nvidia_pytriton.libs"),
        (numpy, backend / "numpy"),
        (numpy.parent / "numpy.libs", backend / "numpy.libs"),
    )


def _mirror(source: Path, destination: Path) -> None:
    """Link or copy a file or a tree so that others can read it."""
    if not source.exists():
        raise InvalidInputError(
            Code.PROGRAM,
            f"{source} is missing; nvidia-pytriton and numpy come with it for Python {PYTHON}.",
            "Install both again as wheels: pip install --force-reinstall 'slicewise[sandbox]'.",
        )
    if source.is_dir():
        shutil.copytree(
            source,
            destination,
            copy_function=_link_or_copy,
            ignore=shutil.ignore_patterns("tests", "*.pyi"),
        )
    else:
        _link_or_copy(str(source), str(destination))


def _link_or_copy(source: str, destination: str) -> None:
    """A hard link where that gives others what they need, else a copy with the right mode."""
    mode = Path(source).stat().st_mode
    needed = _OTHERS_READ | (_OTHERS_SEARCH if mode & 0o100 else 0)
    if mode & needed == needed:
        try:
            Path(destination).hardlink_to(source)
        except OSError:  # another file system, or the kernel's protected_hardlinks
            pass
        else:
            return
    shutil.copyfile(source, destination)
    Path(destination).chmod(0o755 if mode & 0o100 else 0o644)


def _open_directories(top: Path) -> None:
    """Let others search every directory: copies take the modes of a possibly private original."""
    for directory, _, _ in os.walk(top):
        Path(directory).chmod(0o755)


def _libpython() -> tuple[Path, Path]:
    """The shared libpython to embed and its home: the running interpreter's, else the system's."""
    library_dir = Path(str(sysconfig.get_config_var("LIBDIR")))
    name = f"libpython{PYTHON}.so.1.0"
    for library, home in (
        (library_dir / name, Path(sys.base_prefix)),
        (SYSTEM_LIBPYTHON, Path("/usr")),
    ):
        if _others_can_read(library):
            return library, home
    raise InvalidInputError(
        Code.PROGRAM,
        f"Triton's Python backend needs libpython{PYTHON}.so.1.0 where every user can read it.",
        f"apt-get install libpython{PYTHON}",
    )


def _others_can_read(path: Path) -> bool:
    """Whether a user who is neither owner nor in the group can open that file."""
    real = path.resolve()
    return (
        real.is_file()
        and bool(real.stat().st_mode & _OTHERS_READ)
        and all(parent.stat().st_mode & _OTHERS_SEARCH for parent in real.parents)
    )
