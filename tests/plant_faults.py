"""Plants one fault at a time in a copy of the tree: a test that is named with it must fail.

The faults are in planted_faults.toml. If tests did not import the copy, none would fail and every
fault would survive.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build" / "reports" / "faults.json"
_COPIES = 2
"""Number of faults that are tried at the same time."""
_LONGEST_S = 300.0
"""Seconds after which tests that still run count as not failed."""
_LONGEST_ALL_S = 6 * _LONGEST_S
"""Most seconds for all tests together without a fault."""
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "build", ".*_cache", ".hypothesis")
_PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A change to one line of a file, as a developer might make it by mistake.

    Attributes:
        name: what goes wrong, in words.
        old: the line, or a part of it, with enough text around it to occur only once in the file.
        killed_by: pytest's arguments: the tests that are run, of which one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: tuple[str, ...]

    def planted(self, text: str) -> str:
        """The file's text with the fault. Raises ValueError unless ``old`` is there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has its old text {text.count(self.old)} ×")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    """The result of one fault; ``by`` is the test that failed, or "" if the fault survived."""

    name: str
    file: str
    by: str
    took_s: float


def faults() -> tuple[Fault, ...]:
    """The faults listed in planted_faults.toml."""
    listed = tomllib.loads((ROOT / "tests" / "planted_faults.toml").read_text(encoding="utf-8"))
    return tuple(Fault(**{**one, "killed_by": tuple(one["killed_by"])}) for one in listed["fault"])


async def _failed(
    copy: Path,
    tests: Iterable[str],
    *,
    longest_s: float = _LONGEST_S,
    keeps_bytecode: bool = False,
) -> str:
    """Run tests in the copy, and return the first that fails; "" if none does.

    Raises ValueError if the tests can't be run, and TimeoutError if they take too long.
    """
    dont_write = "" if keeps_bytecode else "1"
    own = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": dont_write}
    process = await asyncio.create_subprocess_exec(
        *(*_PYTEST, "--hypothesis-seed=0", *tests),
        cwd=copy,
        env={**os.environ, **own},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), longest_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    failed = _FAILED.search(text := output.decode())
    # Exit code 1: tests have failed. Any other but 0: the tests did not even begin.
    if process.returncode not in {0, 1} or (process.returncode and failed is None):
        raise ValueError(text)
    return failed[1] if failed is not None else ""


async def _tried(fault: Fault, copy: Path) -> Outcome:
    file, began_s = copy / fault.file, time.monotonic()
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(fault.planted(text), encoding="utf-8")
        by = await _failed(copy, fault.killed_by)
    except TimeoutError:
        by = ""
    finally:
        file.write_text(text, encoding="utf-8")
    return Outcome(fault.name, fault.file, by, round(time.monotonic() - began_s, 1))


async def _all_tried(listed: Sequence[Fault], console: Console) -> list[Outcome]:
    """Try all faults, and leave no copy however that ends.

    Raises ValueError if a test fails without a fault.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    done: list[Outcome] = []
    with (
        TemporaryDirectory(prefix="slicewise-faults-") as folder,
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("Without a fault", total=len(listed))
        copies = [Path(folder) / str(number) for number in range(_COPIES)]
        shutil.copytree(ROOT, copies[0], ignore=_NOT_COPIED)
        every = sorted({test for fault in listed for test in fault.killed_by})
        try:
            failed = await _failed(copies[0], every, longest_s=_LONGEST_ALL_S, keeps_bytecode=True)
        except TimeoutError:
            failed = f"the run, which takes longer than {_LONGEST_ALL_S:g} s,"
        if failed:
            raise ValueError(f"Without any fault {failed} fails.")
        for copy in copies[1:]:
            shutil.copytree(copies[0], copy)
        progress.update(bar, description="Faults")
        left = iter(listed)

        async def work(copy: Path) -> None:
            for fault in left:
                done.append(await _tried(fault, copy))
                progress.advance(bar)

        async with asyncio.TaskGroup() as workers:
            for copy in copies:
                workers.create_task(work(copy))
    return sorted(done, key=lambda one: [fault.name for fault in listed].index(one.name))


def main() -> int:
    """Write build/reports/faults.json and show it; return the exit code.

    It is 1 if a fault survived or faults could not be tried, and 130 after an interruption.
    """
    console, listed = Console(), faults()
    try:
        for fault in listed:
            fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
        found = asyncio.run(_all_tried(listed, console))
    except (ValueError, ExceptionGroup) as error:
        for one in error.exceptions if isinstance(error, ExceptionGroup) else (error,):
            console.print(str(one), markup=False)
        return 1
    except asyncio.CancelledError:
        return 130
    table = Table(Column("fault"), Column("killed by", overflow="fold"))
    for one in found:
        table.add_row(one.name, one.by.rpartition("::")[2] or "[red]SURVIVED")
    console.print(table)
    survived = sum(not one.by for one in found)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = {"survived": survived, "faults": [asdict(one) for one in found]}
    REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(f"{len(found) - survived} of {len(found)} killed: {REPORT.relative_to(ROOT)}")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
