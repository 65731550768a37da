"""Counts the seeds of the fault simulation until a planted fault is found.

``python tests/fault_detection.py [MOST]`` plants what fault_detection.toml lists, one at a time, in
a copy of the tree, runs seeds 0, 1, ... there and writes build/reports/fault_detection.json. A
fault that ``MOST`` seeds (2,000) do not find stays unfound.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from plant_faults import ROOT, Fault, faults
from rich.console import Console

REPORT = ROOT / "build" / "reports" / "fault_detection.json"
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "build", ".*_cache", ".hypothesis")
_COPIES = 2
_LONGEST_S = 1800
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
    return {"name": fault.name, "seeds": int(number) if number else None, "words": words}


def main() -> int:
    """Write the report and show it; 1 if a fault stays unfound."""
    console = Console()
    most = int(sys.argv[1]) if sys.argv[1:] else 2000
    with ThreadPoolExecutor(_COPIES) as pool:
        rows = []
        for row in pool.map(lambda fault: found(fault, most), listed()):
            rows.append(row)
            line = f"{row['seeds'] or 'not found':>10}  {row['name']}: {row['words']}"
            console.print(line, markup=False, highlight=False)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"most": most, "faults": rows}, indent=2) + "\n", encoding="utf-8")
    return int(any(row["seeds"] is None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
