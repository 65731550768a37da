"""Counts the GPUs for ParvaGPU's scenarios, and for 1,000 services drawn from its tables.

ParvaGPU's format: ``prof_data/MODEL.csv`` (what one instance of each size does by batch and
processes), ``SLO/SLO_latency.csv`` (ms) and ``SLO/SLO_req_rate.csv`` (requests/s). The last two
have a row for each scenario and a column for each model in alphabetical order; N/A means that the
scenario has no such service.
"""

import csv
import hashlib
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.layouts import geometry
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.measurements import Measurement
from slicewise.cluster.runtime.measurement_file import read_measurements
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.mig.instances import (
    LATENCY_SHARE,
    InstancePlan,
    Measured,
    ServiceLoad,
    fewest_gpus,
)

Services = Mapping[str, ServiceLoad]
Tables = Mapping[str, Sequence[Measured]]

_PUBLISHED = {1: 2, 2: 3, 3: 5, 4: 7, 5: 13, 6: 16}
"""GPUs that ParvaGPU's authors report for their scenarios; those files have the digest below."""
_PUBLISHED_SHA256 = "5f5512ae6ada88967bd04d006d898397d8472a64d03d99aaec71cdcef5a16b1f"

_BOARD = board("A100-80GB")
_PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
_MANY = 1_000
_REPEATS = 5
_TOLERANCE = 1e-6
_FILES = ("SLO_latency.csv", "SLO_req_rate.csv")
_Row = Sequence[Decimal | None]


class ScenarioError(Exception):
    """A file is not in ParvaGPU's format."""


def run(data: Path, slo: Path | None = None, seed: int = 1) -> Mapping[str, Mapping[str, Any]]:
    """Count GPUs by scenario: ours, published, the optimum; and the seconds that ours took.

    ``data`` is a folder in ParvaGPU's format; ``slo`` is a folder with other scenarios for its
    models.
    """
    asked, published = scenarios(data, slo), _published(slo or data / "SLO")
    found = {
        str(number): {"published": published.get(number), **_measured(services)}
        for number, services in enumerate(asked, 1)
    }
    found[f"{_MANY} services"] = {"published": None, **_thousand(tables(data), seed)}
    return found


def _published(folder: Path) -> Mapping[int, int]:
    digest = hashlib.sha256()
    for name in _FILES:
        digest.update(folder.joinpath(name).read_bytes())
    return _PUBLISHED if digest.hexdigest() == _PUBLISHED_SHA256 else {}


def _measured(services: Services) -> Mapping[str, Any]:
    try:
        plan, seconds = _timed(services, _REPEATS)
    except InvalidInputError as refused:
        return {"ours": None, "optimum": None, "seconds": None, "refused": str(refused)}
    return {"ours": plan.gpus, "optimum": optimum(services), "seconds": seconds}


def _thousand(models: Tables, seed: int) -> Mapping[str, Any]:
    plan, seconds = _timed(many(models, _MANY, seed), 1)
    proven = plan.gpus if plan.gpus == plan.at_least else None
    return {"ours": plan.gpus, "at_least": plan.at_least, "optimum": proven, "seconds": seconds}


def _timed(services: Services, repeats: int) -> tuple[InstancePlan, float]:
    """The plan, and the median of the seconds that it took."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        plan = fewest_gpus(services, _BOARD)
        taken.append(time.perf_counter() - began)
    return plan, round(sorted(taken)[repeats // 2], 4)


def many(models: Tables, count: int, seed: int) -> Services:
    """Draw services with a random model, load, and SLO that can be met."""
    chance = random.Random(seed)  # noqa: S311
    services: dict[str, ServiceLoad] = {}
    for number in range(count):
        table = models[chance.choice(sorted(models))]
        least_us = min(row.latency_us for row in table if row.throughput_mrps)
        slo_us = int(least_us / float(LATENCY_SHARE) * chance.uniform(1.5, 20))
        rate_mrps = int(500_000 * chance.lognormvariate(0, 1.2))
        services[f"{number:04}"] = ServiceLoad(rate_mrps, slo_us, table)
    return services


def optimum(services: Services) -> int | None:
    """The fewest GPUs by one integer program over instances and layouts of the whole board.

    None if the search ended before the number was proven.
    """
    rows = {profile: row for row, profile in enumerate(_PROFILES)}
    program = LinearProgram([0] * len(rows) + [load.rate_mrps / 1000 for load in services.values()])
    for layout in geometry(_BOARD).maximal:
        held = [one.profile for one in layout if one.profile in rows]
        program.add(1, {rows[profile]: held.count(profile) for profile in held}, whole=True)
    for row, load in enumerate(services.values(), len(rows)):
        for profile, rate_rps in _rates_rps(load).items():
            program.add(0, {rows[profile]: -1, row: rate_rps}, whole=True)
    solution = program.solve()
    gpus = round(solution.cost)
    return gpus if solution.floor > gpus - 1 + _TOLERANCE else None


def _rates_rps(load: ServiceLoad) -> Mapping[str, float]:
    """By profile, the highest rate among the configurations that are fast enough for the SLO."""
    counted = [row for row in load.measured if row.latency_us < LATENCY_SHARE * load.slo_us]
    counted.sort(key=lambda row: row.throughput_mrps)
    return {row.profile: row.throughput_mrps / 1000 for row in counted}


def tables(data: Path) -> Tables:
    """The measurements of each model; ScenarioError if there are none."""
    files = sorted((data / "prof_data").glob("*.csv"))
    if not files:
        raise ScenarioError(f"{data / 'prof_data'} holds no MODEL.csv.")
    return {file.stem: tuple(map(_measurement, read_measurements(file))) for file in files}


def _measurement(row: Measurement) -> Measured:
    return Measured(row.type, row.batch, row.processes, row.throughput_mrps, row.latency_us)


def scenarios(data: Path, slo: Path | None = None) -> Sequence[Services]:
    """The services of each scenario of ``slo``, or else of the data; ScenarioError if malformed."""
    folder, models = slo or data / "SLO", tables(data)
    slos_ms, rates_rps = (_numbers(folder / name, len(models)) for name in _FILES)
    if len(slos_ms) != len(rates_rps):
        raise ScenarioError(f"{folder}: {len(slos_ms)} rows of SLOs, {len(rates_rps)} of rates.")
    return [_services(models, *rows) for rows in zip(slos_ms, rates_rps, strict=True)]


def _services(models: Tables, slos_ms: _Row, rates_rps: _Row) -> Services:
    return {
        model: ServiceLoad(math.ceil(rate_rps * 1000), math.floor(slo_ms * 1000), models[model])
        for model, slo_ms, rate_rps in zip(models, slos_ms, rates_rps, strict=True)
        if slo_ms is not None and rate_rps is not None
    }


def _numbers(file: Path, columns: int) -> Sequence[_Row]:
    if not file.is_file():
        raise ScenarioError(f"{file} is missing.")
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = [row for row in csv.reader(lines) if row]
    for row in rows:
        if len(row) != columns:
            raise ScenarioError(f"{file}: {len(row)} columns for {columns} models.")
    return [[_number(file, cell.strip()) for cell in row] for row in rows]


def _number(file: Path, cell: str) -> Decimal | None:
    if cell == "N/A":
        return None
    if not re.fullmatch(r"\d+(\.\d*)?", cell):
        raise ScenarioError(f"{file}: {cell!r} is neither a number nor N/A.")
    return Decimal(cell)
