"""Counts the seeds of the fault simulation until a planted fault is found.

``python tests/fault_detection.py [MOST] [WORDS]`` plants what fault_detection.toml lists, two at a
time, each in a copy of the tree, runs seeds 0, 1, ... there and writes
build/reports/fault_detection.json. A fault that ``MOST`` seeds (2,000) do not find stays unfound;
``WORDS`` are in the names of the faults to plant.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from plant_faults import ROOT, Fault, faults
from rich.console import Console
from rich.table import Table

REPORT = ROOT / "build" / "reports" / "fault_detection.json"
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "build", ".*_cache", ".hypothesis")
_COPIES = 2
_LONGEST_S = 3000
_SEEDS = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests"]
from fault_world.world import live
for seed in range(int(sys.argv[2])):
    try:
        live(seed)
    except Exception as error:  # a planted fault may raise anything
        print(seed + 1, " ".join(str(error).split())[:200])
        break
"""


def listed() -> tuple[Fault, ...]:
    """The faults to plant."""
    own = tomllib.loads((ROOT / "tests/fault_detection.toml").read_text(encoding="utf-8"))
    by_name = {fault.name: fault for fault in faults()}
    return (
        *(by_name[name] for name in own["planted"]),
        *(Fault(**one, killed_by=()) for one in own["fault"]),
    )


def found(fault: Fault, most: int) -> dict[str, object]:
    """Plant the fault in a copy and run seeds until one finds it."""
    began_s = time.monotonic()
    with TemporaryDirectory(prefix="slicewise-fault-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=_NOT_COPIED)
        file = copy / fault.file
        text = file.read_text(encoding="utf-8")
        file.write_text(fault.planted(text), encoding="utf-8")
        done = subprocess.run(
            (sys.executable, "-c", _SEEDS, str(copy), str(most)),
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=_LONGEST_S,
        )
    number, _, words = done.stdout.strip().partition(" ")
    seeds = int(number) if number else None
    took_s = round(time.monotonic() - began_s, 1)
    return {"name": fault.name, "seeds": seeds, "took_s": took_s, "words": words}


def main() -> int:
    """Write the report and show it; 1 if a fault stays unfound."""
    console = Console()
    most = int(sys.argv[1]) if sys.argv[1:] else 2000
    those = [fault for fault in listed() if all(word in fault.name for word in sys.argv[2:])]
    rows: list[dict[str, object]] = []
    with ThreadPoolExecutor(_COPIES) as pool:
        for done in as_completed(pool.submit(found, fault, most) for fault in those):
            rows.append(done.result())
            line = f"{len(rows)} of {len(those)}: {_words(rows[-1])}  {rows[-1]['name']}"
            console.print(line, markup=False, highlight=False)
    names = [fault.name for fault in those]
    rows.sort(key=lambda row: names.index(str(row["name"])))
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"most": most, "faults": rows}, indent=2) + "\n", encoding="utf-8")
    table = Table("fault", "seeds", "seconds", "found by")
    for row in rows:
        table.add_row(row["name"], _words(row), str(row["took_s"]), row["words"])
    console.print(table)
    return int(any(row["seeds"] is None for row in rows))


def _words(row: dict[str, object]) -> str:
    return str(row["seeds"] or "not found")


if __name__ == "__main__":
    sys.exit(main())
