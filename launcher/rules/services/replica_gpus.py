"""Checks that an engine can use the GPUs of which a replica is to consist."""

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.rules.engines.engine import Engine


def require_usable(engine: Engine, shape: ReplicaShape, settings: Settings) -> None:
    """Check a replica's shape; raises InvalidInputError (SW-SERVICE) with one that would do.

    A type that is still open may be one of MIG instances: the check is repeated once it is known.
    """
    can, more = engine.parallelism, "For more requests at a time raise max_replicas."
    if shape.nodes > 1 and not can.nodes:
        raise _refused(
            f"nodes: {engine.title} serves a model from one node, not from {shape.nodes}.",
            f"Write nodes = 1. {more}",
        )
    if shape.gpus > 1 and not can.gpus:
        raise _refused(
            f"gpus: {engine.title} serves a model from one GPU, not from {shape.gpus}.",
            f"Write gpus = 1. {more}",
        )
    is_split = shape.request.count > 1 and shape.gres_type in settings.boards_by_type
    if is_split and not can.instances:
        raise _refused(
            f"profile: {shape.words} are MIG instances, which can't copy memory to each other and "
            f"form no group in NCCL: {engine.title} can't spread a model over them.",
            f"{_instead(shape, settings)} {more}",
        )


def require_split(engine: Engine, spec: ServiceSpec) -> None:
    """Check that the engine splits layers as the service says; raises InvalidInputError."""
    if spec.tensor_parallel is not None and not engine.parallelism.layers:
        raise _refused(
            f"tensor_parallel: {engine.title} does not split layers over GPUs.",
            "Leave tensor_parallel out.",
        )


def _refused(message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(Code.SERVICE, message, hint)


def _instead(shape: ReplicaShape, settings: Settings) -> str:
    """Return the cheapest shapes with as much memory: one larger instance, and whole GPUs."""
    needed_mib = shape.request.count * (settings.memory_mib.get(shape.gres_type or "") or 0)
    if not needed_mib:
        return "Write gpus = 1 and nodes = 1, or the type of whole GPUs as profile."
    whole = set(settings.whole_types.values())
    larger = [
        ReplicaShape(kind)
        for kind in settings.boards_by_type
        if (settings.memory_mib[kind] or 0) >= needed_mib
    ]
    boards = [
        ReplicaShape(kind, -(-needed_mib // memory_mib))
        for kind, memory_mib in settings.memory_mib.items()
        if kind in whole and memory_mib
    ]
    cheapest = (
        min(some, key=lambda shape: shape.cost_millislices(settings.costs))
        for some in (larger, boards)
        if some
    )
    texts = [_keys(shape) for shape in cheapest]
    gib = f"{needed_mib / 1024:.0f} GiB"
    if not texts:
        return f"No instance and no whole GPU of slicewise.toml has {gib}."
    return f"As much memory ({gib}) has {' or '.join(texts)}."


def _keys(shape: ReplicaShape) -> str:
    gpus = f", gpus = {shape.gpus}" if shape.gpus > 1 else ""
    return f'profile = "{shape.gres_type}"{gpus}'
