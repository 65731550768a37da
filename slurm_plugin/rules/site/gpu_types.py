"""Tells GPU models by the names and numbers of the GRES types that nodes have.

What names and numbers leave open is named, and never guessed where models differ in price.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from slicewise.cluster.language.gpus.mig_names import mig_name, names_gpu, names_part
from slicewise.cluster.language.gpus.mig_profiles import (
    Board,
    Fit,
    boards,
    boards_named,
    cost_millislices,
    fitting_profile,
    has_memory_of_part,
    profile_of,
)
from slicewise.cluster.language.jobs import NodeView
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_WEIGHT = Fraction(1)
_WITHOUT_PROFILE = (
    "it may be a part of a GPU, and its name has no one MIG profile: give it a type that has, or"
    " write it under whole in slicewise.toml"
)
_Counts = Mapping[str, int]


@dataclass(frozen=True)
class UnknownTypes:
    """Types of MIG instances whose model can't be told, and why.

    Attributes:
        has_profiles: whether their names say which part of a GPU they are, so that with the model
            they have a price.
    """

    types: tuple[str, ...]
    why: str
    has_profiles: bool = True


@dataclass(frozen=True)
class GpuTypes:
    """The GRES types of each GPU model, and those whose model must be asked."""

    models: Mapping[str, tuple[str, ...]]
    unknown: tuple[UnknownTypes, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Types of one kind of board, and how many of them each node has.

    Attributes:
        beside: types of whole GPUs of the same nodes.
    """

    stem: str
    types: frozenset[str]
    nodes: tuple[_Counts, ...]
    beside: frozenset[str] = frozenset()


def gpu_types(nodes: Iterable[NodeView]) -> GpuTypes:
    """Return what the types of these nodes tell of their GPUs.

    Types that stand beside each other on some node, with the same name before their sizes, belong
    to one model. A type without the size of a MIG instance stands for whole GPUs: of the model that
    its name says, else of one of its own.
    """
    seen = [
        {
            gres_type: count
            for gres_type, count in node.gpus.items()
            if count and not is_pad(gres_type)
        }
        for node in nodes
    ]
    models: dict[str, tuple[str, ...]] = {}
    unknown: list[UnknownTypes] = []
    by_stem: dict[str, str] = {}
    for group in _groups(seen):
        for part in _parts(group):
            told = _model_of(part)
            if isinstance(told, UnknownTypes):
                unknown.append(told)
                continue
            models[told.model] = (*models.get(told.model, ()), *sorted(part.types))
            by_stem[part.stem] = told.model
    for gres_type in sorted(
        {gres_type for counts in seen for gres_type in counts if not may_be_part(gres_type)}
    ):
        named = boards_named(gres_type)
        own = named[0].model if len(named) == 1 else gres_type.upper()
        model = by_stem.get(gres_type.lower(), own)
        models[model] = (*models.get(model, ()), gres_type)
    return GpuTypes({name: models[name] for name in sorted(models)}, tuple(unknown))


def fitting_boards(kinds: Iterable[str]) -> tuple[Board, ...]:
    """Return the boards that can be cut into all of these types, those that fit best alone.

    Where the types' names say which GPU it is, only such boards; elsewhere the memory in the names
    must be that of the boards' profiles, or as drivers show it.
    """
    wanted = tuple(kinds)
    named = [on for gres_type in wanted for on in boards_named(_stem(gres_type))]
    if not named and any(names_gpu(_stem(gres_type)) for gres_type in wanted):
        return ()
    fits: dict[str, Fit] = {}
    for on in named or boards().values():
        tried = [_fit(on, gres_type) for gres_type in wanted]
        fitting = [fit for fit in tried if fit is not None]
        if fitting and len(fitting) == len(tried):
            fits[on.model] = max(fitting)
    best = min(fits.values(), default=Fit.NEAR)
    if best is Fit.NEAR and not named:
        return ()
    return tuple(boards()[name] for name, fit in fits.items() if fit is best)


def is_profile(model: str, gres_type: str) -> bool:
    """Whether the GRES type is a MIG profile of that model."""
    return model in boards() and _fit(boards()[model], gres_type) is not None


def may_be_part(gres_type: str) -> bool:
    """Whether a type may stand for parts of GPUs, as far as its name says."""
    return (
        names_part(gres_type)
        or has_memory_of_part(gres_type)
        or any(_fit(on, gres_type) is not None for on in boards().values())
    )


def _fit(on: Board, gres_type: str) -> Fit | None:
    fit = fitting_profile(on, gres_type)
    return None if fit is None else fit[1]


def _is_doubtful(gres_type: str) -> bool:
    """Whether a type that may be a part has no one profile in its name."""
    fits = (_fit(on, gres_type) for on in boards().values())
    return mig_name(gres_type) is None and all(fit is None for fit in fits)


def _stem(gres_type: str) -> str:
    """What a type's name says before its size; AMD's profiles stand behind a "_".

    A name without a profile stands alone: no other type's model follows from it.
    """
    if _is_doubtful(gres_type):
        return gres_type.lower()
    mig = mig_name(gres_type)
    return mig.stem if mig is not None else gres_type.rpartition("_")[0].lower()


def _groups(nodes: Iterable[_Counts]) -> Sequence[_Group]:
    groups: list[_Group] = []
    for counts in nodes:
        by_stem: dict[str, dict[str, int]] = {}
        whole = frozenset(gres_type for gres_type in counts if not may_be_part(gres_type))
        for gres_type, count in counts.items():
            if gres_type not in whole:
                by_stem.setdefault(_stem(gres_type), {})[gres_type] = count
        for stem, own in by_stem.items():
            beside = [group for group in groups if group.types & own.keys()]
            groups = [group for group in groups if not group.types & own.keys()]
            types = frozenset(own).union(*(other.types for other in beside))
            seen = tuple(node for other in beside for node in other.nodes)
            wholes = (other.beside for other in beside)
            groups.append(_Group(stem, types, (*seen, own), whole.union(*wholes)))
    return groups


def _parts(group: _Group) -> Sequence[_Group]:
    """Return the group; each type alone where no one board can be cut into all of them.

    Of a node with several kinds of boards the numbers say nothing.
    """
    if len(group.types) == 1 or fitting_boards(group.types):
        return (group,)
    return [
        _Group(group.stem, frozenset({gres_type}), (), group.beside)
        for gres_type in sorted(group.types)
    ]


def _model_of(group: _Group) -> Board | UnknownTypes:
    if doubtful := [gres_type for gres_type in sorted(group.types) if _is_doubtful(gres_type)]:
        return UnknownTypes(tuple(doubtful), _WITHOUT_PROFILE, has_profiles=False)
    fitting = fitting_boards(group.types)
    if not fitting:
        return UnknownTypes(tuple(sorted(group.types)), _why_none(group))
    if len(_prices(fitting, group)) > 1:
        fitting = _filled(fitting, group) or fitting
    if len(_prices(fitting, group)) > 1:
        names = " or ".join(board.model for board in fitting)
        why = f"the GPU is {names}, which differ in price"
        return UnknownTypes(tuple(sorted(group.types)), why)
    beside = [on for gres_type in group.beside for on in boards_named(gres_type)]
    return next((on for on in fitting if on in beside), fitting[0])


def _why_none(group: _Group) -> str:
    if named := boards_named(group.stem):
        return f"{named[0].model} has no MIG profile of such a name"
    if names_gpu(group.stem):
        return "the MIG table has no such GPU"
    return "no GPU of the MIG table has a profile of such a name"


def _prices(fitting: Iterable[Board], group: _Group) -> frozenset[tuple[int, ...]]:
    kinds = sorted(group.types)
    return frozenset(
        tuple(cost_millislices(on, gres_type, _WEIGHT) for gres_type in kinds) for on in fitting
    )


def _filled(fitting: Iterable[Board], group: _Group) -> tuple[Board, ...]:
    """Return the boards of which each node has a whole number, cut to the full: the fewest.

    An A100 of 40 GB has four 1g.10gb at most, one of 80 GB seven: seven on a node fill one of
    these, and are too many for one of those. () if no such number excludes the other boards.
    """
    numbers = {on.model: [_number(on, counts) for counts in group.nodes] for on in fitting}
    sums = {model: sum(number) for model, number in numbers.items() if all(number)}
    least = min(sums.values(), default=0)
    if not group.nodes:
        return ()
    filled = [boards()[model] for model, number in sums.items() if number == least]
    others = [boards()[model] for model in numbers.keys() - sums.keys()]
    return tuple(filled) if all(_has_too_few(on, group) for on in others) else ()


def _has_too_few(on: Board, group: _Group) -> bool:
    """Whether a node has more of a type than one such board could."""
    return any(
        count > profile_of(on, gres_type).max_instances
        for counts in group.nodes
        for gres_type, count in counts.items()
    )


def _number(on: Board, counts: _Counts) -> int:
    """How many boards these instances fill; 0 if they fill no whole number."""
    profiles = [(profile_of(on, gres_type), count) for gres_type, count in counts.items()]
    compute = sum(profile.compute_slices * count for profile, count in profiles)
    memory = sum(profile.memory_slices * count for profile, count in profiles)
    number = max(
        ceil(Fraction(compute, on.compute_slices)),
        ceil(Fraction(memory, on.memory_slices)),
        *(ceil(Fraction(count, profile.max_instances)) for profile, count in profiles),
    )
    is_full = number * on.compute_slices == compute or number * on.memory_slices == memory
    return number if is_full else 0
