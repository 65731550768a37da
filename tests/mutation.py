"""Counts which mutants of a pure room the tests notice.

``make mutation ROOM=slurm_plugin/rules/quota`` tries one room.

mutmut makes the mutants, each one changed expression, in a copy of the tree, and runs the tests
that call the changed function. A mutant that no test fails for has *survived*: nothing would tell
if somebody wrote that by mistake. Without rooms on the command line all are tried (hours).

``SAMPLE=50`` tries so many of each room, drawn by a fixed seed: an hour for all rooms.

Pure is what pyproject.toml's contract of import-linter says. build/reports/mutation.json has the
last counts of each room, and how each survivor differs.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[1]
REPORT = PROJECT / "build" / "reports" / "mutation.json"
_MUTMUT = str(Path(sys.executable).with_name("mutmut"))
_CONTRACT = "Decisions are pure"
_ROOT = "slicewise."
_LINKS = "slicewise"
"""The folder of links to the packages. mutmut puts these into its copy, as folders; it changes only
modules of the room."""
_UNHEEDED = frozenset({".git", ".venv", "build", "tests"})
_SLOW = "test_fault_simulation.py"
"""It calls nearly every function, for minutes."""
_READS_CODE = re.compile(r"^(import|from) (ast|inspect)\b|glob\(\"[^\"]*\*\.py\"\)", re.MULTILINE)
"""In tests that judge code as text, which is another one with the mutants in it."""
_RESULT = re.compile(r"^\s*(\S+__mutmut_\d+): (.+)$", re.MULTILINE)
_NONE = "no mutant has this name"
"""With it mutmut makes the mutants and fails before it tries one."""
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
    """How many of a room's mutants were tried, how many tests noticed, and the others."""

    mutants: int
    tried: int
    noticed: int
    survivors: tuple[Survivor, ...]

    @property
    def score(self) -> float:
        """Share of the tried mutants that were noticed, in percent."""
        return 100 * self.noticed / self.tried if self.tried else 100.0


def pure_rooms(pyproject: Mapping[str, object], root: Path) -> dict[str, str]:
    """The pure packages, dotted, by their room, such as ``slurm_plugin/rules/quota``."""
    contracts = pyproject["tool"]["importlinter"]["contracts"]  # type: ignore[index]
    (contract,) = (one for one in contracts if one["name"].startswith(_CONTRACT))
    places = [name.removeprefix(_ROOT).replace(".", "/") for name in contract["source_modules"]]
    inits = {init for one in places for init in root.glob(f"{one}/**/__init__.py")}
    rooms = sorted(init.parent.relative_to(root) for init in inits)
    return {str(room): _ROOT + ".".join(room.parts) for room in rooms if _has_modules(root / room)}


def _has_modules(room: Path) -> bool:
    return any(path.name != "__init__.py" for path in room.glob("*.py"))


def patterns(modules: Iterable[str], root: Path) -> list[str]:
    """The files of modules and packages as mutmut's patterns."""
    paths = [module.replace(".", "/") for module in modules]
    return [f"{path}/*" if (root / path).is_dir() else f"{path}.py" for path in paths]


def tests_of(modules: Sequence[str], root: Path) -> list[str]:
    """Unit and property tests that name one of the modules, or lie in the folder of its room."""
    named = re.compile("|".join(re.escape(module) for module in modules))
    rooms = (module.removeprefix(_ROOT).replace(".", "/") for module in modules)
    folders = tuple(f"tests/unit/{room}/" for room in rooms)
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
        if path.name not in {_LINKS, *_UNHEEDED} and not path.name.endswith("_cache")
    ]
    packages = sorted((root / _LINKS).iterdir())
    options = ["-n", "0", "-p", "no:cacheprovider", "--no-caretaker"]
    keys = {
        "source_paths": [f"{_LINKS}/{one.name}" for one in packages if one.is_symlink()],
        "only_mutate": patterns(modules, root),
        "also_copy": [*beside, f"{_LINKS}/__init__.py"],
        "pytest_add_cli_args": options,
        "pytest_add_cli_args_test_selection": tests_of(modules, root),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    flags = ("use_setproctitle = false", "use_git_change_detection = false")
    return "\n".join(("", "[tool.mutmut]", *lines, *flags, ""))


def drawn(results: str, sample: int) -> list[str]:
    """Names of ``sample`` mutants that ``mutmut results --all true`` lists, the same each time."""
    names = sorted(dict(_RESULT.findall(results)))
    return sorted(random.Random(0).sample(names, min(sample, len(names))))  # noqa: S311


def outcome(results: str, diffs: Mapping[str, str], sample: Collection[str] = ()) -> Outcome:
    """Read what ``mutmut results --all true`` prints, with the difference of each survivor.

    Raises ValueError if mutmut has not tried all mutants, or all of the sample.
    """
    all_names = dict(_RESULT.findall(results))
    by_name = {name: all_names[name] for name in sample or all_names}
    known = _NOTICED | {_SURVIVED, _NOT_CALLED}
    if untried := [name for name, result in by_name.items() if result not in known]:
        raise ValueError(f"{len(untried)} of {len(by_name)} mutants were not tried")
    survivors = tuple(
        Survivor(name, result == _SURVIVED, diffs.get(name, ""))
        for name, result in sorted(by_name.items())
        if result not in _NOTICED
    )
    return Outcome(len(all_names), len(by_name), len(by_name) - len(survivors), survivors)


def estimate(outcomes: Collection[Outcome]) -> tuple[float, float]:
    """Score of the rooms' mutants together, in percent, and how far off it may be.

    Each room weighs as much as it has mutants. The bound is twice the standard error of a
    stratified sample; 0 where all were tried.
    """
    mutants = sum(one.mutants for one in outcomes)
    if not mutants:
        return 100.0, 0.0
    weighed = [(one.mutants / mutants, one) for one in outcomes if one.tried]
    score = sum(weight * one.score for weight, one in weighed)
    variance = sum(
        weight**2 * one.score * (100 - one.score) / one.tried * (1 - one.tried / one.mutants)
        for weight, one in weighed
    )
    return score, 2 * variance**0.5


def tried(modules: Sequence[str], workers: int, sample: int | None = None) -> Outcome:
    """Let mutmut try all mutants of the modules, or a sample of them, in a copy of the tree.

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
        names: list[str] = []
        if sample is not None:
            subprocess.run((*argv, _NONE), cwd=tree, check=False, stderr=subprocess.DEVNULL)
            names = drawn(_results(tree), sample)
        ended = subprocess.run((*argv, *names), cwd=tree, check=False)
        results = _results(tree)
        # mutmut fails where there is nothing to change: it leaves decorated functions alone.
        if _RESULT.search(results):
            ended.check_returncode()
        survivors = [name for name, result in _RESULT.findall(results) if result == _SURVIVED]
        return outcome(results, {name: _shown(("show", name), tree) for name in survivors}, names)


def keep(outcomes: Mapping[str, Outcome], report: Path) -> None:
    """Write the outcomes of these rooms beside those that other rooms had before."""
    rooms = json.loads(report.read_text()) if report.exists() else {}
    rooms |= {room: {"score": round(one.score, 1), **asdict(one)} for room, one in outcomes.items()}
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(dict(sorted(rooms.items())), indent=1) + "\n")


def table(outcomes: Mapping[str, Outcome]) -> Table:
    """A row for each room, the fewest survivors last."""
    shown = Table("room", "mutants", "tried", "noticed", "survived", "never called", "score")
    for column in shown.columns[1:]:
        column.justify = "right"
    for room, one in sorted(outcomes.items(), key=lambda item: item[1].score):
        called = sum(survivor.is_called for survivor in one.survivors)
        counts = (one.mutants, one.tried, one.noticed, called, len(one.survivors) - called)
        shown.add_row(room, *(f"{count:,}" for count in counts), f"{one.score:.1f} %")
    score, margin = estimate(outcomes.values())
    shown.caption = f"all of them: {score:.1f} %" + (f" ± {margin:.1f}" if margin else "")
    return shown


def main(argv: Sequence[str]) -> int:
    """Try the rooms; return 2 if one of them is no pure room."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*")
    parser.add_argument("--sample", type=int, help="how many of each room (default: all)")
    arguments = parser.parse_args(argv)
    asked = arguments.rooms
    pyproject = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    rooms = pure_rooms(pyproject, PROJECT)
    console = Console()
    if unknown := [room for room in asked if room not in rooms]:
        console.print(f"{unknown[0]} is no pure room; these are: {', '.join(rooms)}")
        return 2
    outcomes = {}
    for room in asked or rooms:
        outcomes[room] = tried((rooms[room],), os.cpu_count() or 1, arguments.sample)
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


def _results(folder: Path) -> str:
    return _shown(("results", "--all", "true"), folder)


def _shown(argv: Sequence[str], folder: Path) -> str:
    return subprocess.run(
        (_MUTMUT, *argv), cwd=folder, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
