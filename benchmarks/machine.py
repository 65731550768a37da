"""Describes the machine that a benchmark ran on."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path


def machine() -> Mapping[str, object]:
    """The model and number of processors, the kernel, and the load average of the last minute."""
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", cpus, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cpus": len(re.findall(r"^processor\s*:", cpus, re.MULTILINE)),
        "kernel": platform.release(),
        "load": Path("/proc/loadavg").read_text(encoding="utf-8").split()[0],
    }
