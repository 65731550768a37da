"""Counts which mutants of a pure room the tests notice: ``make mutation ROOM=slurm_plugin/quota``.

mutmut makes the mutants, each one changed expression, in a copy of the tree, and runs the tests
that call the changed function. A mutant that no test fails for has *survived*: nothing would tell
if somebody wrote that by mistake. Without rooms on the command line all are tried (hours).

Pure is what pyproject.toml's contract of import-linter says. build/reports/mutation.json has the
last counts of each room, and how each survivor differs.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[1]
REPORT = PROJECT / "build" / "reports" / "mutation.json"
_MUTMUT = str(Path(sys.executable).with_name("mutmut"))
_CONTRACT = "Decisions are pure"
_SOURCES = ("cluster", "launcher", "migrations", "sandbox", "simulation", "slurm_plugin")
"""Packages that mutmut puts into its copy; it changes only modules of the room."""
_UNHEEDED = frozenset({".git", ".venv", "build", "tests"})
_SLOW = "test_fault_simulation.py"
"""It calls nearly every function, for minutes."""
_READS_CODE = re.compile(r"^(import|from) (ast|inspect)\b|glob\(\"[^\"]*\*\.py\"\)", re.MULTILINE)
"""In tests that judge code as text, which is another one with the mutants in it."""
_RESULT = re.compile(r"^\s*(\S+__mutmut_\d+): (.+)$", re.MULTILINE)
_SURVIVED, _NOT_CALLED = "survived", "no tests"
_NOTICED = frozenset({"killed", "timeout", "suspicious", "segfault"})


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test failed for; ``is_called`` is false if no test calls its function."""

    name: str
    is_called: bool
    diff: str


@dataclass(frozen=True)
class Outcome:
    """How many mutants of a room there were, how many tests noticed, and the others."""

    mutants: int
    noticed: int
    survivors: tuple[Survivor, ...]

    @property
    def score(self) -> float:
        """Share of the mutants that were noticed, in percent."""
        return 100 * self.noticed / self.mutants if self.mutants else 100.0


def pure_rooms(pyproject: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """The pure modules and packages, dotted, by their room, such as ``slurm_plugin/quota``."""
    contracts = pyproject["tool"]["importlinter"]["contracts"]  # type: ignore[index]
    (contract,) = (one for one in contracts if one["name"].startswith(_CONTRACT))
    rooms: dict[str, list[str]] = defaultdict(list)
    for module in contract["source_modules"]:
        rooms["/".join(module.split(".")[:2])].append(module)
    return {room: tuple(modules) for room, modules in sorted(rooms.items())}


def patterns(modules: Iterable[str], root: Path) -> list[str]:
    """The files of modules and packages as mutmut's patterns."""
    paths = [module.replace(".", "/") for module in modules]
    return [f"{path}/*" if (root / path).is_dir() else f"{path}.py" for path in paths]


def tests_of(modules: Sequence[str], root: Path) -> list[str]:
    """Unit and property tests that name one of the modules, or lie in the folder of its room."""
    named = re.compile("|".join(re.escape(module) for module in modules))
    folders = tuple(f"tests/unit/{'/'.join(module.split('.')[:2])}/" for module in modules)
    files = sorted((*root.glob("tests/unit/**/test_*.py"), *root.glob("tests/property/test_*.py")))
    texts = {
        str(file.relative_to(root)): file.read_text(encoding="utf-8")
        for file in files
        if file.name != _SLOW
    }
    return [
        path
        for path, text in texts.items()
        if (path.startswith(folders) or named.search(text)) and not _READS_CODE.search(text)
    ]


def configuration(modules: Sequence[str], root: Path) -> str:
    """mutmut's table of pyproject.toml."""
    beside = [
        path.name
        for path in sorted(root.iterdir())
        if path.name not in {*_SOURCES, *_UNHEEDED} and not path.name.endswith("_cache")
    ]
    options = ["-n", "0", "-p", "no:cacheprovider", "--no-caretaker"]
    keys = {
        "source_paths": [name for name in _SOURCES if (root / name).is_dir()],
        "only_mutate": patterns(modules, root),
        "also_copy": beside,
        "pytest_add_cli_args": options,
        "pytest_add_cli_args_test_selection": tests_of(modules, root),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    flags = ("use_setproctitle = false", "use_git_change_detection = false")
    return "\n".join(("", "[tool.mutmut]", *lines, *flags, ""))


def outcome(results: str, diffs: Mapping[str, str]) -> Outcome:
    """Read what ``mutmut results --all true`` prints, with the difference of each survivor.

    Raises ValueError if mutmut has not tried all mutants.
    """
    by_name = dict(_RESULT.findall(results))
    known = _NOTICED | {_SURVIVED, _NOT_CALLED}
    if untried := [name for name, result in by_name.items() if result not in known]:
        raise ValueError(f"{len(untried)} of {len(by_name)} mutants were not tried")
    survivors = tuple(
        Survivor(name, result == _SURVIVED, diffs.get(name, ""))
        for name, result in sorted(by_name.items())
        if result not in _NOTICED
    )
    return Outcome(len(by_name), len(by_name) - len(survivors), survivors)


def tried(modules: Sequence[str], workers: int) -> Outcome:
    """Let mutmut try all mutants of the modules in a copy of the tree.

    Raises CalledProcessError if the tests fail without any change, too.
    """
    with TemporaryDirectory(prefix="slicewise-mutation-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        archive = subprocess.run(
            ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
            cwd=PROJECT,
            check=True,
            capture_output=True,
        ).stdout
        _run(("tar", "-c", "--null", "-T", "-", "-f", f"{folder}/tree.tar"), PROJECT, archive)
        _run(("tar", "-x", "-f", f"{folder}/tree.tar"), tree)
        with (tree / "pyproject.toml").open("a", encoding="utf-8") as pyproject:
            pyproject.write(configuration(modules, tree))
        run = Path(folder) / "run"
        run.mkdir()
        os.environ["SLICEWISE_TEST_RUN"] = str(run)
        argv = (_MUTMUT, "run", "--max-children", str(workers))
        ended = subprocess.run(argv, cwd=tree, check=False)
        results = _shown(("results", "--all", "true"), tree)
        # mutmut fails where there is nothing to change: it leaves decorated functions alone.
        if _RESULT.search(results):
            ended.check_returncode()
        survivors = [name for name, result in _RESULT.findall(results) if result == _SURVIVED]
        return outcome(results, {name: _shown(("show", name), tree) for name in survivors})


def keep(outcomes: Mapping[str, Outcome], report: Path) -> None:
    """Write the outcomes of these rooms beside those that other rooms had before."""
    rooms = json.loads(report.read_text()) if report.exists() else {}
    rooms |= {room: {"score": round(one.score, 1), **asdict(one)} for room, one in outcomes.items()}
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(dict(sorted(rooms.items())), indent=1) + "\n")


def table(outcomes: Mapping[str, Outcome]) -> Table:
    """A row for each room, the fewest survivors last."""
    shown = Table("room", "mutants", "noticed", "survived", "never called", "score")
    for column in shown.columns[1:]:
        column.justify = "right"
    for room, one in sorted(outcomes.items(), key=lambda item: item[1].score):
        called = sum(survivor.is_called for survivor in one.survivors)
        counts = (one.mutants, one.noticed, called, len(one.survivors) - called)
        shown.add_row(room, *(f"{count:,}" for count in counts), f"{one.score:.1f} %")
    return shown


def main(asked: Sequence[str]) -> int:
    """Try the rooms; return 2 if one of them is no pure room."""
    rooms = pure_rooms(tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8")))
    console = Console()
    if unknown := [room for room in asked if room not in rooms]:
        console.print(f"{unknown[0]} is no pure room; these are: {', '.join(rooms)}")
        return 2
    outcomes = {}
    for room in asked or rooms:
        outcomes[room] = tried(rooms[room], os.cpu_count() or 1)
        # After each room, as the last one may be cut short.
        keep(outcomes, REPORT)
    for room, one in outcomes.items():
        for survivor in one.survivors if asked else ():
            console.rule(f"{room}: {survivor.name}")
            console.print(survivor.diff, markup=False, highlight=False)
    console.print(table(outcomes))
    return 0


def _run(argv: Sequence[str], folder: Path, text: bytes = b"") -> None:
    subprocess.run(argv, cwd=folder, check=True, input=text)


def _shown(argv: Sequence[str], folder: Path) -> str:
    return subprocess.run(
        (_MUTMUT, *argv), cwd=folder, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
