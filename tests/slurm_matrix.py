"""Runs integration tests on every Slurm that is there: ``make matrix``.

``python tests/slurm_matrix.py [OPTIONS] [MODULE...]`` runs these modules, by default all, on the
distribution's Slurm, on each that was built (``make slurm``) and on each Debian tree in the cache.
What came out is in build/reports/slurm_matrix.json, and replaces what was known of these modules in
tests/assets/slurm-runs.json, from which docs/generate.py makes the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from slicewise.sandbox.host.packages import SLURM_VARIABLE

PROJECT = Path(__file__).resolve().parent.parent
REPORT = PROJECT / "build" / "reports" / "slurm_matrix.json"
KEPT = PROJECT / "tests" / "assets" / "slurm-runs.json"
_IN_TREE = PROJECT / "tests" / "in_tree.sh"
_FOLDER = Path("tests/integration")
_REASON = 160
"""Most characters of a reason."""
_VERSIONS = r"""
PATH=$1/sbin:$1/bin:$PATH
lib=$(ls -d "$1"/lib/slurm /usr/lib/*/slurm-wlm 2>/dev/null | head -n 1)
slurmctld -V | sed 's/.* //'
. /etc/os-release; echo "${PRETTY_NAME%% (*}"
mariadbd --version | sed -E 's/.*Ver ([0-9.]+).*/\1/'
haproxy -v | sed -nE '1s/.*version ([0-9.]+).*/\1/p'
ldd "$lib/job_submit_lua.so" | sed -nE 's/.*liblua-?([0-9]\.[0-9])\.so.*/\1/p' | head -n 1
"""
_NAMES = ("slurm", "system", "mariadb", "haproxy", "lua")


@dataclass(frozen=True)
class Slurm:
    """One to run on: the distribution's, a prefix, or the distribution's of another Debian tree."""

    prefix: Path | None = None
    tree: Path | None = None

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """How ``argv`` is run where this Slurm is."""
        if self.tree is not None:
            return (str(_IN_TREE), str(self.tree), *argv)
        return ("env", f"{SLURM_VARIABLE}={self.prefix or ''}", *argv)


def slurm_at(place: Path) -> Slurm | None:
    """The Slurm in a folder: a prefix, or a Debian tree; None if it is neither."""
    if (place / "etc" / "debian_version").exists():
        return Slurm(tree=place)
    return Slurm(prefix=place) if (place / "sbin" / "slurmctld").exists() else None


def all_in(builds: Path) -> Iterator[Slurm]:
    """The distribution's, then what the cache has."""
    yield Slurm()
    for place in sorted(builds.iterdir()) if builds.exists() else ():
        found = None if place.name.startswith(".") else slurm_at(place.resolve())
        if found is not None:
            yield found


def outcomes(cases: Iterable[ET.Element], **how: str) -> dict[str, dict[str, Any]]:
    """By module: how many cases passed, failed and were skipped, and why those that failed did.

    ``how`` is kept beside them: when and by which reader they ran.
    """
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        module = next(part for part in case.get("classname", "").split(".") if "test_" in part)
        one = found.setdefault(
            module, {"passed": 0, "failed": 0, "skipped": 0, **how, "reasons": {}}
        )
        problem = next((each for each in case if each.tag in {"failure", "error"}), None)
        if problem is not None:
            one["failed"] += 1
            words = " ".join(problem.get("message", "").split())[:_REASON]
            one["reasons"][case.get("name", "")] = words
        else:
            one["passed" if case.find("skipped") is None else "skipped"] += 1
    return found


def merged(kept: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept, with the modules of ``fresh`` in the place of their earlier runs.

    The keys are versions, such as ``24.11.5``, or ``24.11.5 built`` of one that is no
    distribution's.
    """
    both = {version: dict(one) for version, one in kept.items()}
    for version, one in fresh.items():
        before = both.get(version, {"modules": {}})
        both[version] = {**one, "modules": dict(before["modules"]) | one["modules"]}
    by_number = sorted(both, key=lambda name: (_numbers(name.split()[0]), name))
    return {
        version: {**both[version], "modules": dict(sorted(both[version]["modules"].items()))}
        for version in by_number
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def run_on(slurm: Slurm, options: Sequence[str], modules: Sequence[str]) -> dict[str, Any]:
    """Run the tests; return the report by the Slurm's version.

    Raises CalledProcessError if the tests could not be run.
    """
    versions = _versions(slurm)
    paths = [str(_FOLDER / f"{name}.py") for name in modules] or [str(_FOLDER)]
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        argv = (sys.executable, "-m", "pytest", *options, f"--junitxml={results.name}", *paths)
        command = slurm.command(argv)
        code = subprocess.run(command, cwd=PROJECT, check=False).returncode
        # Exit code 1: tests have failed. Any other but 0: the tests did not run.
        if code not in {0, 1}:
            raise subprocess.CalledProcessError(code, command)
        cases = list(ET.parse(results.name).iter("testcase"))  # noqa: S314 -- pytest wrote it
    version = versions.pop("slurm")
    today = datetime.now(UTC).date().isoformat()
    modules_ran = outcomes(cases, on=today, reader=_reader(version))
    name = f"{version} built" if slurm.prefix else version
    return {name: {**versions, "modules": modules_ran}}


def _reader(version: str) -> str:
    """How the daemon reads that Slurm with the packages of this Python."""
    try:
        installed = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return "commands"
    return "pyslurm" if installed.split(".")[:2] == version.split(".")[:2] else "commands"


def _versions(slurm: Slurm) -> dict[str, str]:
    command = slurm.command(("bash", "-euc", _VERSIONS, "versions", str(slurm.prefix or "")))
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    return dict(zip(_NAMES, said.stdout.splitlines(), strict=True))


def keep(place: Path, fresh: Mapping[str, Any]) -> None:
    """Put the outcomes into the file, beside what it has of other modules and versions."""
    kept = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(merged(kept, fresh), indent=1, ensure_ascii=False)
    place.write_text(f"{text}\n", encoding="utf-8")


def main() -> int:
    """Run, keep and print; the exit code is 1 if any case failed on any Slurm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=Path, default=Path("build/slurm"), help="the cache")
    parser.add_argument("--slurm", type=Path, help="only this prefix or Debian tree")
    parser.add_argument("--workers", default="0", help="of pytest")
    parser.add_argument("modules", nargs="*", help="such as test_line")
    asked = parser.parse_args()
    only = None if asked.slurm is None else slurm_at(asked.slurm.resolve())
    if asked.slurm is not None and only is None:
        parser.error(f"{asked.slurm} is neither a prefix of Slurm nor a Debian tree")
    REPORT.unlink(missing_ok=True)
    failed = 0
    for slurm in (only,) if only else all_in(asked.builds):
        options = ("-q", "-m", "integration", "-n", asked.workers)
        fresh = run_on(slurm, options, asked.modules)
        keep(REPORT, fresh)
        keep(KEPT, fresh)
        failed += _print(fresh)
    return min(failed, 1)


def _print(fresh: Mapping[str, Any]) -> int:
    failed = 0
    for version, one in fresh.items():
        for module, counts in one["modules"].items():
            numbers = ", ".join(f"{counts[key]} {key}" for key in ("passed", "failed", "skipped"))
            sys.stdout.write(f"Slurm {version} {module}: {numbers}\n")
            failed += counts["failed"]
    return failed


if __name__ == "__main__":
    os.chdir(PROJECT)
    sys.exit(main())
