"""Compares what a program serves with its catalogue, and names with Prometheus' conventions; says
which series there are.
"""

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from effort import is_ci
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from slicewise.cluster.runtime.metric_catalogue import FLAG, LABELS, MetricSpec
from slicewise.launcher.process.metric_catalogue import METRICS as OF_LAUNCHER
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS as OF_DAEMON

RULES = Path(__file__).parents[1] / "etc" / "slicewise.rules.yml"
_ENDS = {"counter": "_total", "info": "_info"}
_OF_TYPE = {"le", "quantile"}
"""Labels that Prometheus' types add."""
_NO_BASE_UNIT = re.compile(
    r"_(ms|us|ns|sec|secs|milliseconds|minutes|hours|days|kib|mib|gib|kilobytes|megabytes|percent)(_|$)"
)


def breaches(served: Iterable[Metric], catalogued: Mapping[str, MetricSpec]) -> Iterator[str]:
    """What is wrong; ``served`` has a value of each metric."""
    found = {f"{one.name}{_ENDS.get(one.type, '')}": one for one in served}
    yield from (f"{name}: not in the catalogue" for name in found.keys() - catalogued.keys())
    yield from (f"{name}: not served" for name in catalogued.keys() - found.keys())
    for name, spec in catalogued.items():
        yield from unconventional(name, spec)
        if name in found:
            yield from _unlike(found[name], spec)


def series() -> set[str]:
    """Names of all series that daemon and launcher serve."""
    parts = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
    every = [*OF_DAEMON.values(), *OF_LAUNCHER.values()]
    return {f"{one.name}{part}" for one in every for part in parts.get(one.kind, ("",))}


def rules() -> Iterator[Mapping[str, Any]]:
    """Alerts and what is recorded."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def recorded() -> set[str]:
    """Names of the series that rules record."""
    return {one["record"] for one in rules() if "record" in one}


def unknown(expressions: str, recorded: Collection[str]) -> set[str]:
    """Names of series in PromQL that are neither served nor recorded."""
    named = set(re.findall(r"(?<![\w:])(?:\w+:)?slicewise_\w+(?::\w+)?", expressions))
    return named - series() - set(recorded)


needs_promtool = pytest.mark.skipif(
    not is_ci() and shutil.which("promtool") is None, reason="no promtool here"
)


def promtool(*words: str | Path, stdin: bytes = b"") -> str:
    """What promtool says; it finds nothing wrong."""
    done = subprocess.run(("promtool", *words), input=stdin, capture_output=True, check=False)
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, said
    return said


def lint(registry: CollectorRegistry) -> str:
    """What promtool would have otherwise in what is served."""
    return promtool("check", "metrics", stdin=generate_latest(registry))


def _unlike(family: Metric, spec: MetricSpec) -> Iterator[str]:
    if family.type != spec.kind:
        yield f"{spec.name}: a {family.type}, no {spec.kind}"
    if family.documentation != spec.text:
        yield f"{spec.name}: another text"
    if not family.samples:
        yield f"{spec.name}: without a value"
    for sample in family.samples:
        if sample.labels.keys() - _OF_TYPE != set(spec.labels):
            yield f"{spec.name}: labels {', '.join(sample.labels)}"


def unconventional(name: str, spec: MetricSpec) -> Iterator[str]:
    if name != spec.name or not re.fullmatch(r"slicewise(_[a-z0-9]+)+", name):
        yield f"{name}: no such name"
    if _NO_BASE_UNIT.search(name):
        yield f"{name}: no base unit"
    plain = name.removesuffix(_ENDS.get(spec.kind, ""))
    if any(name.endswith(end) != (kind == spec.kind) for kind, end in _ENDS.items()):
        yield f"{name}: its end is not that of its type"
    if spec.unit not in {"", FLAG} and not plain.endswith(f"_{spec.unit}"):
        yield f"{name}: does not end with {spec.unit}"
    if not spec.unit and spec.kind not in {"counter", "info"}:
        yield f"{name}: no unit"
    yield from (f"{name}: label {label} has no bound" for label in set(spec.labels) - LABELS.keys())
    if not spec.text.endswith("."):
        yield f"{name}: says nothing"
