"""Reads which GPUs one task of a submission asks for, chooses missing types, and adds up costs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import (
    AUTO,
    SHARED,
    GpuRequest,
    counted,
    parse_gpu_requests,
    parse_shared,
    plain_gres,
    shared_gpus,
    with_type,
)
from slicewise.cluster.rpc.messages import SubmitRequest
from slicewise.slurm_plugin.rules.admission.gpu_type import choose_type, has_memory
from slicewise.slurm_plugin.rules.admission.snapshot import GpuType, Snapshot, types_text

_GPU = f"gpu:{AUTO}:1"
"""The request of a job that states how much GPU memory it needs, but asks for no GPU."""


@dataclass(frozen=True)
class ResolvedRequest:
    """What one task asks for.

    Attributes:
        instances: the least number of instances by type, over all its nodes and tasks.
        cost_millislices: the least cost; Slurm itself bills what it allots in the end.
        chosen: the type that was chosen for GPUs without one; None if all had a type.
        texts: the requests that must be rewritten, by field of the answer.
        unnamed_millislices: the part of the cost of GPUs that it does not ask for, but gets with
            whole nodes.
    """

    instances: Mapping[str, int] = field(hash=False)
    cost_millislices: int
    chosen: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict, hash=False)
    unnamed_millislices: int = 0


@dataclass(frozen=True)
class _Part:
    """GPUs requested in one text, and how often a task gets them."""

    gpus: GpuRequest
    times: int

    @property
    def count(self) -> int:
        return self.gpus.count * self.times


def asks_for_gpus(request: SubmitRequest, need_mib: int | None) -> bool:
    """Whether the submission asks for GPUs: by a request, a need of GPU memory or whole nodes."""
    asks = need_mib is not None or request.exclusive
    return asks or any(_has_gpus(text) for _, text, _ in _texts(request))


def resolved_request(
    request: SubmitRequest, need_mib: int | None, limits: Mapping[str, int], snapshot: Snapshot
) -> ResolvedRequest:
    """Return what one task asks for.

    ``limits`` are the most instances by type that the tenant may have. ``need_mib`` is the GPU
    memory that each instance must have; None if the job does not say.

    Raises InvalidInputError: SW-GRES, SW-NEED-TOO-LARGE, SW-PROFILE-UNKNOWN.
    """
    if need_mib is not None and not any(_has_gpus(text) for _, text, _ in _texts(request)):
        gres = f"{request.gres},{_GPU}" if request.gres else _GPU
        request = request.model_copy(update={"gres": gres})
    parts = list(_parts(request, snapshot))
    chosen = None
    if any(part.gpus.is_open for part in parts):
        chosen = _chosen(request, parts, need_mib, limits, snapshot)
    instances = _instances(parts, chosen)
    if need_mib is not None:
        for name in instances:
            if name in SHARED:
                raise _no_memory_of_its_own(name, need_mib, snapshot)
            _check_memory(gpu_type(name, snapshot), need_mib, snapshot)
    named, cost = _named_cost(instances, snapshot), _cost(request, instances, snapshot)
    texts = dict(_rewritten(request, chosen))
    return ResolvedRequest(instances, cost, chosen, texts, cost - named)


def gpus_of(request: SubmitRequest, snapshot: Snapshot) -> tuple[GpuRequest, ...]:
    """Return the GPUs of each request, counted over all nodes and tasks of one array task.

    Raises InvalidInputError (SW-GRES).
    """
    return tuple(GpuRequest(part.gpus.gres_type, part.count) for part in _parts(request, snapshot))


def named_types(request: SubmitRequest) -> tuple[str, ...]:
    """Return the GPU types that a request names, sorted; none if it can't be read."""
    try:
        parts = [part for _, text, _ in _texts(request) for part in _read(text)[0]]
    except InvalidInputError:
        return ()
    return tuple(sorted({part.gres_type for part in parts if part.gres_type and not part.is_open}))


def gpu_type(name: str, snapshot: Snapshot) -> GpuType:
    """Return a GPU type by name.

    Raises InvalidInputError (SW-PROFILE-UNKNOWN) if no node has it.
    """
    gpu_type = snapshot.gpu_types.get(name)
    if gpu_type is None:
        raise InvalidInputError(
            Code.PROFILE_UNKNOWN,
            f"profile: no node has GPU slices of type {name!r}.",
            f"Choose one of the {types_text(snapshot.gpu_types.values())}.",
        )
    return gpu_type


def too_large(need: str, snapshot: Snapshot) -> InvalidInputError:
    """Build the error SW-NEED-TOO-LARGE; ``need`` is in words, such as ``need_gib: 40 GiB``."""
    types = snapshot.gpu_types.values()
    largest = max((candidate.memory_mib or 0 for candidate in types), default=0)
    return InvalidInputError(
        Code.NEED_TOO_LARGE,
        f"{need} do not fit into any GPU slice of this cluster that you may use.",
        f"The largest has {largest / 1024:.1f} GiB; {types_text(types)}.",
    )


def _has_gpus(text: str) -> bool:
    return "gpu" in text or bool(text and shared_gpus(text))


def _texts(request: SubmitRequest) -> Iterator[tuple[str, str, int]]:
    """Yield each field that requests something, its text, and how often a task gets that."""
    nodes = max(1, request.min_nodes or 1)
    tasks = request.tasks or (request.tasks_per_node or 1) * nodes
    if request.gres:
        yield "gres", request.gres, nodes
    if request.tres_per_job:
        yield "tres_per_job", request.tres_per_job, 1
    if request.tres_per_socket:
        yield "tres_per_socket", request.tres_per_socket, nodes
    if request.tres_per_task:
        yield "tres_per_task", request.tres_per_task, tasks


def _parts(request: SubmitRequest, snapshot: Snapshot) -> Iterator[_Part]:
    for name, text, times in _texts(request):
        for shared_request in _shared(name, text, snapshot):
            yield _Part(shared_request, times)
        gpus, is_open, _ = _read(text)
        if is_open:
            _check_open(text, gpus)
        for gpu_request in gpus:
            yield _Part(gpu_request, times)


def _shared(name: str, text: str, snapshot: Snapshot) -> tuple[GpuRequest, ...]:
    """Return the parts of shared GPUs that a field asks for, each of a kind that has a price."""
    shared = shared_gpus(text)
    if not shared:
        return ()
    requests = parse_shared(text) if shared in snapshot.shared else ()
    unpriced = next(
        (request.gres_type for request in requests if request.gres_type not in snapshot.shared),
        None,
    )
    if not requests or unpriced:
        raise InvalidInputError(
            Code.GRES,
            f"Shared GPUs ({unpriced or shared}) have no price here, so they can't be charged.",
            f"Ask for slices: {types_text(snapshot.gpu_types.values())}.",
        )
    if name != "gres":
        raise InvalidInputError(
            Code.GRES,
            f"{shared} in {name}: parts of shared GPUs are counted by node.",
            f"Write --gres={shared}:N.",
        )
    return requests


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[tuple[GpuRequest, ...], bool, str]:
    """Return a text's GPUs, whether a type must still be chosen, and the text with all counts.

    The result is cached because most jobs request what other jobs did.
    """
    gpus = parse_gpu_requests(text)
    return gpus, any(gpu.is_open for gpu in gpus), counted(text)


def _check_open(text: str, gpus: tuple[GpuRequest, ...]) -> None:
    """Refuse two open types in one text."""
    if sum(gpu.is_open for gpu in gpus) > 1:
        raise InvalidInputError(
            Code.GRES,
            f"Slicewise can't choose the types of {text!r}.",
            f"Write --gres=gpu:{AUTO}:N, or a type for each.",
        )


def _chosen(
    request: SubmitRequest,
    parts: Iterable[_Part],
    need_mib: int | None,
    limits: Mapping[str, int],
    snapshot: Snapshot,
) -> str:
    """Choose the one type for all GPUs that leave it open."""
    parts = [part for part in parts if part.gpus.is_open]
    untyped = next((part.gpus for part in parts if part.gpus.gres_type is None), None)
    rule = snapshot.rules.untyped
    if untyped is not None and need_mib is None and rule != AUTO:
        if rule == "refuse":
            raise _untyped(untyped.count, snapshot)
        return gpu_type(rule, snapshot).name
    named = _named(request)
    best = choose_type(
        (candidate for candidate in snapshot.gpu_types.values() if named <= candidate.beside),
        count=max(part.count for part in parts),
        need_mib=need_mib,
        limits=limits,
        partitions=snapshot.partitions.intersection(request.partition.split(",")),
    )
    if best is None:
        need = "these GPUs" if need_mib is None else f"need: {need_mib / 1024:g} GiB"
        raise too_large(need, snapshot)
    return best.name


def _named(request: SubmitRequest) -> frozenset[str]:
    """Return the types that are named in a text that also leaves a type open.

    The chosen type must be on the same node as these, and differ from them: of two counts of one
    type in a text Slurm takes the larger one, not the sum.
    """
    texts = (parse_gpu_requests(text) for _, text, _ in _texts(request))
    mixed = (gpus for gpus in texts if any(gpu.is_open for gpu in gpus))
    return frozenset(gpu.gres_type or "" for gpus in mixed for gpu in gpus if not gpu.is_open)


def _untyped(count: int, snapshot: Snapshot) -> InvalidInputError:
    return InvalidInputError(
        Code.GRES,
        "The request names no GPU type; this cluster hands out slices of GPUs.",
        f"Write --gres=gpu:TYPE:{count}, or gpu:{AUTO}:{count} for the cheapest; "
        f"{types_text(snapshot.gpu_types.values())}.",
    )


def _instances(parts: Iterable[_Part], chosen: str | None) -> Mapping[str, int]:
    """Return the least instances by type.

    Requests per node, task and job must all be met, so the largest count of each type is needed.
    """
    instances: dict[str, int] = {}
    for part in parts:
        name = chosen if part.gpus.is_open else part.gpus.gres_type
        if name is not None:
            instances[name] = max(part.count, instances.get(name, 0))
    return instances


def _check_memory(candidate: GpuType, need_mib: int, snapshot: Snapshot) -> None:
    if not has_memory(candidate, need_mib):
        has = "unknown" if candidate.memory_mib is None else f"{candidate.memory_mib / 1024:g} GiB"
        raise InvalidInputError(
            Code.NEED_TOO_LARGE,
            f"need: {need_mib / 1024:g} GiB; the memory of {candidate.name} is {has}.",
            f"Write gpu:{AUTO}, or a larger type; {types_text(snapshot.gpu_types.values())}.",
        )


def _no_memory_of_its_own(name: str, need_mib: int, snapshot: Snapshot) -> InvalidInputError:
    return InvalidInputError(
        Code.NEED_TOO_LARGE,
        f"need: {need_mib / 1024:g} GiB; a job with {name} has no memory of its own: others use the"
        " same GPU.",
        f"Write gpu:{AUTO}, or a type; {types_text(snapshot.gpu_types.values())}.",
    )


def _named_cost(instances: Mapping[str, int], snapshot: Snapshot) -> int:
    return sum(_cost_of(name, snapshot) * count for name, count in instances.items())


def _cost_of(name: str, snapshot: Snapshot) -> int:
    if name in SHARED:
        return snapshot.shared[name]
    return gpu_type(name, snapshot).cost_millislices


def _cost(request: SubmitRequest, instances: Mapping[str, int], snapshot: Snapshot) -> int:
    cost = _named_cost(instances, snapshot)
    if not request.exclusive:
        return cost
    # An exclusive job gets whole nodes, and Slurm bills all of their GPUs.
    least = min(
        (node_cost for node_cost in snapshot.node_costs if node_cost or not instances), default=0
    )
    return max(cost, least * max(1, request.min_nodes or 1))


def _rewritten(request: SubmitRequest, chosen: str | None) -> Iterator[tuple[str, str]]:
    for name, text, _ in _texts(request):
        _, is_open, whole = _read(text)
        if is_open and chosen is not None:
            whole = with_type(whole, chosen)
        if whole != text:
            yield name, plain_gres(whole) if name == "gres" else whole
