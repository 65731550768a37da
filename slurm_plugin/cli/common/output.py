"""Shows the progress of long work on a terminal; writes files completely or not at all."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EINVAL, EISDIR
from io import BufferedWriter, FileIO, IOBase, TextIOWrapper
from pathlib import Path
from tempfile import mkstemp
from typing import IO, TYPE_CHECKING, TypeVar

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.console import terminal_console

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")
F = TypeVar("F", bound=IOBase)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show a spinner on stderr while the body runs, if stderr is a terminal."""
    with _progress() as progress:
        progress.add_task(text, total=None, count="")
        yield


@contextmanager
def counting(noun: str, every: int) -> Iterator[Callable[[Iterable[T]], Iterator[T]]]:
    """Yield a function that passes rows on and counts them on stderr, if that is a terminal.

    ``every``: rows between two updates of the count.
    """
    with _progress() as progress:
        task = progress.add_task(noun, total=None, count="0 ")

        def counted(rows: Iterable[T]) -> Iterator[T]:
            for number, row in enumerate(rows, start=1):
                if number % every == 0:
                    progress.update(task, count=f"{number:,} ")
                yield row

        yield counted


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """Yield a function that is told which share of the work is done, 0 to 1.

    A bar on stderr shows it, with the time that is left, if that is a terminal.
    """
    from rich.progress import (  # noqa: PLC0415 -- only for long work
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with _progress(*columns, TimeRemainingColumn(elapsed_when_finished=True)) as progress:
        task = progress.add_task(text, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def _progress(*columns: "ProgressColumn") -> "Progress":
    """Shows these columns; without any a spinner, a count with its noun and the time so far."""
    from rich.progress import (  # noqa: PLC0415 -- only for long work
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = terminal_console(stderr=True)
    text = TextColumn("{task.fields[count]}{task.description}")
    shown = columns or (SpinnerColumn(), text, TimeElapsedColumn())
    return Progress(*shown, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """Write a text file that only its owner can read; it gets its name once all is on disk.

    Raises InvalidInputError (SW-OUTPUT) if it can't be written, at once where the directory is not
    there or may not be written, or ``path`` is no regular file; ``path`` is unchanged then. Errors
    of the body go through as they are.
    """
    with _whole(path, _text) as file:
        yield file


@contextmanager
def whole_binary_file(path: Path) -> Iterator[IO[bytes]]:
    """As ``whole_file``, for a file of bytes."""
    with _whole(path, BufferedWriter) as file:
        yield file


class _Unnamed(FileIO):
    """The file until it gets its name; says of whatever can't be written which one was meant."""

    def __init__(self, path: Path) -> None:
        """Make it, beside ``path``; raises InvalidInputError (SW-OUTPUT) if it can't."""
        self._path = path
        with _writing(path):
            if path.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
            if path.exists() and not path.is_file():
                # Root would put a file in the place of a device that others use.
                raise OSError(EINVAL, "It is a device, a pipe or a socket")
            descriptor, name = mkstemp(prefix=".export-", dir=path.parent)
            super().__init__(name, "w", opener=lambda *_: descriptor)

    def write(self, data: "ReadableBuffer") -> int:
        """Write some of the bytes; InvalidInputError (SW-OUTPUT) if it can't."""
        with _writing(self._path):
            return super().write(data)


def _text(file: FileIO) -> TextIOWrapper:
    return TextIOWrapper(BufferedWriter(file), encoding="utf-8", newline="")


@contextmanager
def _whole(path: Path, layers: Callable[[FileIO], F]) -> Iterator[F]:
    unnamed = _Unnamed(path)
    unfinished = Path(unnamed.name)
    try:
        with layers(unnamed) as file:
            yield file
            file.flush()
            with _writing(path):
                os.fsync(unnamed.fileno())
                unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            Code.OUTPUT, f"{path} can't be written: {error.strerror}.", "Name another file."
        ) from None
