"""A real llama.cpp server for the sandbox's users, out of the Python package xllamacpp.

Jobs run as users who may be able to read neither the project's clone nor its virtual environment,
so the package and the program that starts its server are linked or copied into the sandbox.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.sandbox.host.staging import place

_PROGRAM = Path(__file__).with_name("llama_server.py")


def stage(bin_dir: Path, llamacpp_dir: Path, python: Path) -> Path:
    """Make ``bin_dir/llama-server`` ready for every user who can reach both directories.

    ``python`` runs it. What is there from an earlier call is replaced. Raises InvalidInputError
    (SW-PROGRAM) if the package is not installed.
    """
    spec = find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise InvalidInputError(
            Code.PROGRAM,
            "The Python package xllamacpp is not installed, so there is no llama-server.",
            "Install the extra that brings it: pip install 'slicewise[sandbox]'.",
        )
    shutil.rmtree(llamacpp_dir, ignore_errors=True)
    package = Path(spec.origin).parent
    for path in package.iterdir():
        if path.is_file():
            place(path, llamacpp_dir / package.name / path.name)
    program = llamacpp_dir / _PROGRAM.name
    shutil.copyfile(_PROGRAM, program)
    for folder in (llamacpp_dir, llamacpp_dir / package.name):
        folder.chmod(0o755)
    program.chmod(0o644)
    command = bin_dir / "llama-server"
    bin_dir.mkdir(parents=True, exist_ok=True)
    command.write_text(
        '#!/bin/sh\n# llama-server of the Slicewise sandbox; written by "slicewise sandbox up".\n'
        f"export PYTHONPATH={quote(str(llamacpp_dir))} PYTHONDONTWRITEBYTECODE=1\n"
        f'exec {quote(str(python))} -P {quote(str(program))} "$@"\n',
        encoding="utf-8",
    )
    command.chmod(0o755)
    return command
