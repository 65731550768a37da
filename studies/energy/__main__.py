"""Joules for the same work with as many requests in time: which lever saves what.

Each system runs the same requests on the same site: replicas that never change with hindsight,
Kubernetes' HPA, Knative's KPA, and the launcher's own decision; each with all nodes always up, and
with empty nodes powered down. All boards count, whoever holds them.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from rich.console import Console

from benchmarks.machine import machine
from slicewise.cluster.language.gpus.power import POWERS
from studies import command_line
from studies.autoscale import fleets, traces
from studies.autoscale.hpa import Hpa
from studies.autoscale.kpa import Kpa
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import MAX_REPLICAS, SLO_S, Workload
from studies.command_line import save, side_by_side
from studies.energy import site
from studies.energy.figures import BOARDS, OURS, Row, System, always_on, compared, row_of
from studies.energy.loads import LOADS, Sized, batch
from studies.energy.replay import LOOK_S, Night, Turn, fewest, fixed, launcher, replay, rival
from studies.energy.show import draw, show
from studies.energy.site import OFF_AFTER_S, Rule, Site

_SEED = 20_261_130
_SHARES = (0.8, 0.9, 0.95, 0.99)
"""In time with the numbers of replicas that never change."""
_AIM = 0.95
_BATCH = ("gentd26",)
"""Loads that are also replayed with batch jobs, which use this share of the site's slices."""
_BATCH_SHARE = 0.3
_CAPPED = ("day",)
"""Loads that are also replayed with a cap at night."""
_NIGHT_S = (12 * 3600, 18 * 3600)
"""The day's quietest six hours; its first hour is no midnight."""
_NIGHT_CAP = 4
_HPA_EVERY_S, _KPA_EVERY_S = 15, 1


@dataclass(frozen=True)
class _Cell:
    """One replay.

    Attributes:
        target: the policy's setting; of static ones the number of one of ``_SHARES``.
        least: replicas that each service always has.
        rules: of the site that gives the slices, and of those that look on.
        is_off: whether empty nodes are powered down.
        empties: whether scaling down prefers the emptiest node, as the product does.
        pool: services that share replicas; 0: all.
        night: the most replicas of a service at night; None: as many as by day.
    """

    load: str
    policy: str
    target: float
    least: int
    rules: tuple[Rule, ...]
    is_off: bool
    has_batch: bool = False
    empties: bool = False
    pool: int = 1
    night: int | None = None


@dataclass(frozen=True)
class _Load:
    sized: Sized
    static: Mapping[int, Sequence[Sequence[int]]]
    """Replicas by service or pool, a row a share, by the services of a pool."""
    nodes: int


_SITES: dict[str, _Load] = {}
"""Loads by name, in this process; child processes inherit them when they are forked."""


def main() -> None:
    """Write build/reports/energy.json, draw it, and show what each system draws."""
    parser = command_line.parser("energy", __doc__, _SEED)
    parser.add_argument("--only", nargs="+", choices=LOADS, default=tuple(LOADS))
    parser.add_argument("--quick", action="store_true", help="few services, half an hour of each")
    parser.add_argument("--json", action="store_true", help="print the report, not the tables")
    options = parser.parse_args()
    try:
        named = [(name, options) for name in options.only]
        _SITES.update(zip(options.only, side_by_side(_load, named, "Sizing"), strict=True))
    except traces.TraceError as error:
        sys.exit(str(error))
    cells = [cell for name in options.only for cell in _cells(name, options.quick)]
    rows: dict[str, list[Row]] = {}
    for cell, found in side_by_side(_rows, cells, "Replaying"):
        rows.setdefault(_name(cell), []).extend(found)
    report = {
        "loads": {name: compared(found) for name, found in rows.items()},
        "sites": {name: _described(load) for name, load in _SITES.items()},
        "boards": {model: asdict(POWERS[model]) for model in BOARDS},
        "assumed": {
            "slo_s": SLO_S,
            "aim": _AIM,
            "boards_of_a_node": site.BOARDS,
            "slices_of_a_board": site.SLICES,
            "boot_s": site.BOOT_S,
            "off_after_s": OFF_AFTER_S,
            "look_s": LOOK_S,
            "batch_share": _BATCH_SHARE,
            "span_s": fleets.SPAN_S,
            "warm_s": fleets.WARM_S,
        },
        "seed": options.seed,
        "command": " ".join(("python -m studies.energy", *sys.argv[1:])),
        "machine": machine(),
    }
    save(report, options.report)
    picture = options.report.with_suffix(".png")
    draw(report["loads"], picture)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    console = Console(width=120)
    show(report["loads"], console)
    console.print(f"{options.report} and {picture}")


def _load(named: tuple[str, Any]) -> _Load:
    """Read a load, and size its site: what static replicas need for most requests, and a node."""
    name, options = named
    sized = LOADS[name](options.traces, options.seed)
    if options.quick:
        sized = {
            size: [replace(one, duration_s=2400) for one in services[:3]]
            for size, services in sized.items()
        }
    static = {
        size: [*zip(*(fewest(one, _SHARES) for one in services), strict=True)]
        for size, services in sized.items()
    }
    slices = sum(static[1][-1])
    return _Load(sized, static, ceil(slices / (site.BOARDS * site.SLICES)) + 1)


def _cells(name: str, is_quick: bool) -> list[_Cell]:
    """Return all replays of a load, the longest first."""
    by_rule: tuple[Rule, ...] = ("first", "spread", "weights")
    pools = [size for size in _SITES[name].sized if size != 1]
    off = _Cell(name, OURS, _AIM, 0, ("weights",), is_off=True)
    ours = [
        _Cell(name, OURS, _AIM, 1, by_rule, is_off=False),
        _Cell(name, OURS, _AIM, 0, by_rule, is_off=False),
        off,
        *(replace(off, empties=True, pool=size) for size in (1, *pools)),
    ]
    if name in _CAPPED:
        ours.append(replace(off, empties=True, night=_NIGHT_CAP))
    settings: Mapping[str, tuple[int, Sequence[float]]] = {
        "kpa": (0, (0.25, 0.5, 0.8)),
        "hpa": (1, (0.4, 0.7, 1.0)),
        "static": (0, range(len(_SHARES))),
    }
    rivals = [
        _Cell(name, policy, target, least, by_rule[:1] if is_off else by_rule[:2], is_off)
        for policy, (least, targets) in settings.items()
        for target in (targets[-2:] if is_quick else targets)
        for is_off in (False, True)
    ]
    rivals += [replace(cell, pool=size) for size in pools for cell in rivals if cell.is_off]
    with_batch = [
        replace(cell, has_batch=True) for cell in (*ours, *rivals) if name in _BATCH and cell.is_off
    ]
    return [*ours, *with_batch, *rivals]


def _name(cell: _Cell) -> str:
    return f"{cell.load}, with batch" if cell.has_batch else cell.load


def _rows(cell: _Cell) -> tuple[_Cell, list[Row]]:
    load = _SITES[cell.load]
    sites = [Site(load.nodes, rule, OFF_AFTER_S if cell.is_off else None) for rule in cell.rules]
    services = load.sized[cell.pool]
    if cell.policy == "static":
        numbers = load.static[cell.pool][int(cell.target)]
        services = [
            replace(service, first_replicas=number)
            for service, number in zip(services, numbers, strict=True)
        ]
    slices = load.nodes * site.BOARDS * site.SLICES
    jobs = batch(_BATCH_SHARE * slices, _SEED) if cell.has_batch else ()
    served = replay(
        services, [_turn(cell, one) for one in services], sites, jobs, empties=cell.empties
    )
    systems = [
        System(
            *(cell.policy, cell.target, cell.least, rule, cell.is_off, cell.empties, cell.pool),
            night=cell.night,
        )
        for rule in cell.rules
    ]
    rows = [row_of(system, served, one.tally) for system, one in zip(systems, sites, strict=True)]
    if cell.policy == "static" and not cell.is_off:
        rows.append(always_on(served, sites[-1].tally, cell.target))
    return cell, rows


def _turn(cell: _Cell, service: Workload) -> Turn:
    match cell.policy:
        case "slicewise":
            night = None if cell.night is None else Night(*_NIGHT_S, cell.night)
            policy = Slicewise(service.concurrency, cell.target, cell.least, MAX_REPLICAS)
            return launcher(policy, night)
        case "hpa":
            return rival(Hpa(service.concurrency, cell.target), _HPA_EVERY_S, cell.least)
        case "kpa":
            return rival(Kpa(service.concurrency, cell.target), _KPA_EVERY_S, cell.least)
    return fixed


def _described(load: _Load) -> Mapping[str, Any]:
    services = load.sized[1]
    work_s = sum(float(one.service_s.sum()) / one.concurrency for one in services)
    return {
        "services": len(services),
        "requests": sum(one.arrivals_s.size for one in services),
        "mean_replicas_full": round(work_s / services[0].duration_s, 2),
        "nodes": load.nodes,
        "boards": load.nodes * site.BOARDS,
        "slices": load.nodes * site.BOARDS * site.SLICES,
        "static_slices": {
            size: [sum(numbers) for numbers in static] for size, static in load.static.items()
        },
    }


if __name__ == "__main__":
    main()
