"""Reads the text files that users name, and no more of one than such a file may have."""

import sys
from pathlib import Path
from typing import TextIO

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

MOST_CHARACTERS = 16_000_000
"""More than the accounts of the largest clusters take; /dev/zero has no end."""
_STANDARD_INPUT = Path("-")


def bounded_text(path: Path) -> str:
    """Return the file's UTF-8 text.

    Raises InvalidInputError (SW-VALUE) for more than ``MOST_CHARACTERS``, and OSError and
    UnicodeDecodeError as ``Path.read_text`` does.
    """
    with path.open(encoding="utf-8") as file:
        return _bounded(file, path)


def input_text(path: Path) -> str:
    """Return the text of the file, or of standard input for ``-``.

    Raises InvalidInputError: SW-INPUT-FILE if it can't be read, SW-VALUE as ``bounded_text``.
    """
    try:
        return _bounded(sys.stdin, path) if path == _STANDARD_INPUT else bounded_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(
            Code.INPUT_FILE, f"{path} can't be read: {why}.", "Name a readable text file."
        ) from None


def _bounded(file: TextIO, path: Path) -> str:
    text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise InvalidInputError(
            Code.VALUE,
            f"{path} has more than {MOST_CHARACTERS:,} characters.",
            "Nothing was changed. Name the file that you mean, or split it.",
        )
    return text
