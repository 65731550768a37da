"""How the boards of a node may be cut, where only the number of its instances is known.

Slurm says how many instances of each type a node has, and not on which board they lie. They are
laid on boards as they fit: evenly where that is possible, else the fullest board first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from slicewise.cluster.language.gpus.layouts import Geometry, Placement, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, board, profile_of
from slicewise.cluster.language.gpus.vendors import accelerator
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import BoardsOfNode
from slicewise.slurm_plugin.rules.slurm_config.gres import Device
from slicewise.slurm_plugin.rules.slurm_config.node_lines import counts_by_run, positions
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_Layout = tuple[Placement, ...]


def boards_of(
    gpus: Mapping[str, int], settings: Settings, count: int | None = None
) -> BoardsOfNode | None:
    """The boards of a node with these GPUs, by GRES type; None if none of them is ever cut again.

    ``count`` is their number; None is what the pads say, else as few as they fill. None is
    also returned where the instances do not fit on so many boards, or are those of several models.
    """
    kinds = {kind: number for kind, number in gpus.items() if kind in settings.boards_by_type}
    models = {settings.models[kind] for kind in kinds}
    if not settings.repartition.allowed or len(models) != 1:
        return None
    (model,) = models
    on = settings.boards_by_type[next(iter(kinds))]
    if not accelerator(on.vendor).has_parts:
        return None
    pads = sum(number for kind, number in gpus.items() if is_pad(kind))
    if pads:
        devices = pads + sum(kinds.values())
        if devices % on.compute_slices:
            return None
        count = devices // on.compute_slices
    wanted = {profile_of(on, kind).name: number for kind, number in kinds.items()}
    layouts = _laid(geometry(on), wanted, count)
    if layouts is None:
        return None
    return BoardsOfNode(
        model=model,
        layouts=layouts,
        most=_most(on, settings, len(layouts)),
        cost_millislices=settings.whole_boards[next(iter(kinds))].cost_millislices,
    )


def with_pads(gpus: Mapping[str, int], boards: BoardsOfNode) -> Mapping[str, int]:
    """The GPUs with as many pads as a node needs to be cut beside its jobs, as ``slicewise node
    gres`` arranges them.
    """
    most = board(boards.model).compute_slices
    pads = sum(most - len(layout) for layout in boards.layouts)
    if not pads:
        return gpus
    devices = [
        Device(kind, (f"{kind} {number}",))
        for kind, count in gpus.items()
        for number in range(count)
    ]
    return counts_by_run(positions([None] * (len(devices) + pads), devices, ()))


def _most(on: Board, settings: Settings, boards: int) -> Mapping[str, int]:
    mine = (kind for kind, board in settings.boards_by_type.items() if board.model == on.model)
    return {kind: boards * profile_of(on, kind).max_instances for kind in mine}


def _laid(
    geometry: Geometry, wanted: Mapping[str, int], count: int | None
) -> tuple[_Layout, ...] | None:
    """Lay instances, by profile, on so many boards; None if they do not fit."""
    fullest = _fullest(geometry, wanted)
    number = len(fullest) if count is None else count
    if number and not any(each % number for each in wanted.values()):
        share = {profile: each // number for profile, each in wanted.items()}
        even = next(
            (layout for layout in _layouts(geometry, share) if _counts(layout) == Counter(share)),
            None,
        )
        if even is not None:
            return (even,) * number
    if len(fullest) > number:
        return None
    return (*fullest, *(() for _ in range(number - len(fullest))))


def _fullest(geometry: Geometry, wanted: Mapping[str, int]) -> tuple[_Layout, ...]:
    """Layouts that hold all instances: each time the one that fills a board most."""
    left, laid = Counter(wanted), []
    while left.total():
        best = max(_layouts(geometry, left), key=_fill)
        laid.append(best)
        left -= _counts(best)
    return tuple(laid)


def _layouts(geometry: Geometry, within: Mapping[str, int]) -> Iterator[_Layout]:
    """The layouts with no more instances of each profile than these."""
    for layout in geometry.layouts:
        if all(within.get(profile, 0) >= each for profile, each in _counts(layout).items()):
            yield tuple(sorted(layout, key=lambda placement: placement.start))


def _counts(layout: frozenset[Placement] | _Layout) -> Counter[str]:
    return Counter(placement.profile for placement in layout)


def _fill(layout: _Layout) -> tuple[int, int]:
    """Memory slices that it takes; of equal ones the layout with most instances wastes least."""
    return sum(placement.size for placement in layout), len(layout)
