"""Builds the repartition planner's input for each GPU model from one look at everything."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.cluster.language.jobs import JobView
from slicewise.slurm_plugin.rules.mig.candidates import GpuState
from slicewise.slurm_plugin.rules.mig.gpu_state import (
    NodeLook,
    Past,
    gpus,
    gpus_in_work,
    holders,
    left_out,
    with_last_ones,
)
from slicewise.slurm_plugin.rules.mig.guaranteed_shapes import Needs
from slicewise.slurm_plugin.rules.mig.instance_demand import (
    Awaited,
    demand,
    instances_of,
    profiles_by_type,
)
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand
from slicewise.slurm_plugin.rules.mig.planner import RepartitionTerms
from slicewise.slurm_plugin.rules.slurm_config.gres import ProfileKind


@dataclass(frozen=True)
class SiteObservation:
    """One look at everything that a plan takes into account.

    Attributes:
        looks: views of the nodes that have GPUs.
        jobs: jobs that may hold GPUs.
        indices: Slurm's indices of their GPUs, by job id and node.
        waiting: each instance for which a job waits.
        in_use: mean number of instances in use at a time, by GRES type.
        needed: instances that guarantees need.
        shapes: types that jobs may ask for although no GPU is cut into them.
        move_s: seconds for which a replica and its successor both hold an instance.
        term_s: seconds for which a job on loan is left alone after its start.
        preempting: for how many successors of each replica Slurm preempts jobs on loan, by job id;
            empty where nobody is owed a type.
        at_s: Unix seconds of the look.
    """

    looks: tuple[NodeLook, ...]
    jobs: tuple[JobView, ...]
    indices: Mapping[int, Mapping[str, frozenset[int]]] = field(hash=False)
    waiting: tuple[Awaited, ...]
    in_use: Mapping[str, float] = field(hash=False)
    needed: Needs
    shapes: frozenset[str]
    past: Past
    move_s: int
    term_s: float
    preempting: Mapping[int, int] = field(hash=False)
    at_s: float


@dataclass(frozen=True)
class PlanInput:
    """Input of ``repartitioning.plan`` for one model; ``types``: the site's GRES types by
    profile.
    """

    board: Board
    gpus: tuple[GpuState, ...]
    demand: InstanceDemand
    terms: RepartitionTerms
    types: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class SitePlanInput:
    """The planner's input for all models.

    Attributes:
        boards: input by GPU model.
        left_out: nodes with GPUs on which nothing is planned, with the reason for people to read.
        looks: views of all other nodes, by name.
    """

    boards: Mapping[str, PlanInput]
    left_out: Mapping[str, str]
    looks: Mapping[str, NodeLook]

    @cached_property
    def layouts(self) -> Mapping[str, tuple[Placement, ...]]:
        """The instances of each GPU, by UUID."""
        return {
            gpu.name: tuple(instance.placement for instance in gpu.instances)
            for board in self.boards.values()
            for gpu in board.gpus
        }


def inputs(
    seen: SiteObservation, types: Mapping[ProfileKind, str], terms: RepartitionTerms
) -> SitePlanInput:
    """Input for all models that have a GPU in MIG mode that a plan can take into account."""
    out = {look.node.name: why for look in seen.looks if (why := _why(look, seen.past))}
    by_model = defaultdict[str, list[tuple[Board, GpuState]]](list)
    for board, gpu in _gpus(seen, out.keys()):
        by_model[board.model].append((board, gpu))
    others = [look.node for look in seen.looks if look.node.name in out]
    elsewhere = instances_of(others)
    anywhere = seen.shapes | {k for node in others for k, count in node.gpus.items() if count}
    boards = {}
    for model, several in by_model.items():
        board, pairs = _of_one_kind(several)
        profiles = profiles_by_type(board, types)
        last = {profile for gres_type, profile in profiles.items() if gres_type in anywhere}
        boards[model] = PlanInput(
            board,
            with_last_ones([gpu for _, gpu in pairs], last),
            demand(seen.waiting, seen.in_use, seen.needed, elsewhere, profiles),
            terms,
            {profile: gres_type for gres_type, profile in profiles.items()},
        )
    looks = {look.node.name: look for look in seen.looks if look.node.name not in out}
    return SitePlanInput(boards, out, looks)


def _of_one_kind(
    pairs: Sequence[tuple[Board, GpuState]],
) -> tuple[Board, list[tuple[Board, GpuState]]]:
    """A model's board as most nodes report it, and the GPUs of just this kind.

    So what a single node reports can't change the plan for the others.
    """
    kinds = [_kind(board) for board, _ in pairs]
    # A node has one vote for each kind that it has, however many GPUs it reports.
    votes = dict.fromkeys((gpu.node, kind) for (_, gpu), kind in zip(pairs, kinds, strict=True))
    ((most, _),) = Counter(kind for _, kind in votes).most_common(1)
    same = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind == most]
    return same[0][0], same


def _kind(board: Board) -> tuple[object, ...]:
    """Everything that determines how a board can be cut; equal for boards of one kind."""
    profiles = (
        (
            profile.name,
            profile.compute_slices,
            profile.memory_slices,
            profile.starts,
            profile.max_instances,
        )
        for profile in board.profiles.values()
    )
    return board.compute_slices, board.memory_slices, *sorted(profiles)


def _why(look: NodeLook, past: Past) -> str:
    """Why a node is left out; "" if it is not. While one of its GPUs is in work, others wait."""
    for repartition in past.in_work.values():
        if repartition.node == look.node.name:
            return f"repartition {repartition.repartition_id} is at work there"
    return left_out(look)


def _gpus(seen: SiteObservation, out: Collection[str]) -> Iterator[tuple[Board, GpuState]]:
    jobs = defaultdict[str, list[JobView]](list)
    for job in seen.jobs:
        for node in job.nodes:
            jobs[node].append(job)
    # Where nothing is owed, no job ends for another one: GPUs are alike then, whose jobs they hold.
    is_owed = any(awaited.is_owed for awaited in seen.waiting)
    term_s = seen.term_s if is_owed else inf
    for look in seen.looks:
        name = look.node.name
        if name in out:
            yield from gpus_in_work(look, seen.past)
        else:
            held = holders(
                look.node,
                jobs[name],
                seen.indices,
                seen.at_s,
                move_s=seen.move_s,
                term_s=term_s,
                preempting=seen.preempting,
            )
            yield from gpus(look, held, seen.past)
