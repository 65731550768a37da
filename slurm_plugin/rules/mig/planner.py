"""Plans which GPUs to cut again, so that waiting and expected jobs find instances.

A change of a GPU is worth what the cluster then serves more over the horizon, less ``margin`` times
what is drained for it. The plan compares all changes of each GPU. Across GPUs it takes the best
change, then the next best in addition, and finally tries for each whether another change would be
better in its place. An instance held by a job that can't move is never touched, and an instance
that is in the way of no new one stays. The shapes that guarantees need (``guaranteed_shapes``) stay
as well: whatever the gain, no plan leaves fewer instances than guarantees are used for now. Of
instances that tenants only may claim, it leaves fewer only for a job that waits within its own
tenant's guarantee.

A job that is *owed* its type, which its tenant's quota names, comes before all others if no
instance of the type is free or on loan. For it jobs on loan are ended, those that lose least, as
Slurm would preempt them if they held its type. Replicas move to free instances; for such a job also
to those on loan, where their own guarantees let Slurm preempt for their successors.

No plan undoes the last one. While nothing new is asked for, each plan raises what the cluster
serves, and a GPU that was just cut is left alone until a job asks that did not wait then.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from operator import attrgetter

from slicewise.cluster.language.gpus.layouts import Geometry, Placement, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, cost_millislices
from slicewise.slurm_plugin.rules.mig.candidates import (
    GpuState,
    InstanceState,
    JobHolder,
    LayoutChange,
    ReplicaHolder,
    changes,
)
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand, worth
from slicewise.slurm_plugin.rules.mig.leftover import PossibleUses, full
from slicewise.slurm_plugin.rules.mig.move_places import places

GpuChange = tuple[GpuState, LayoutChange]
"""A change of one GPU."""

CanBe = Callable[[Sequence[GpuChange]], bool]
"""Says whether these changes, all of GPUs of one node, can be made together."""

_PLACE = attrgetter("placement.profile", "placement.start", "placement.size")
"""Sort key of instances, by placement."""

_ROUNDS = 3
"""Most rounds of exchanges; the second seldom finds anything."""

HORIZON_S = 3600
"""Seconds for which a demand forecast is trusted: many times what a repartition takes, so that it
can pay, and no longer than demand of the last hour says anything of."""


@dataclass(frozen=True)
class RepartitionTerms:
    """What a repartition costs, and when it pays.

    Attributes:
        repartition_s: seconds from the drain of free instances to the first use of the new ones.
        horizon_s: seconds for which the demand forecast is trusted.
        nodes_at_once: most nodes on which GPUs may be cut at a time, including nodes in work.
        margin: least ratio of gain to what is drained.
    """

    repartition_s: int
    horizon_s: int
    nodes_at_once: int
    margin: int = 2


@dataclass(frozen=True)
class GpuPlan:
    """Actions on one GPU: first moves, then destroy, then create, each in the given order.

    Attributes:
        moves: names of replicas that move to other nodes.
        gain_millislice_s: what is served more over the horizon; waiting requests count by weight.
        drained_millislice_s: what is not available meanwhile.
        reason: why the GPU is cut, in one line.
        asked: the instances that must be created, placed as if nothing else were. ``create`` has
            further ones that fill the GPU.
        ends: names of jobs on loan that end first.
    """

    gpu: str
    node: str
    moves: tuple[str, ...]
    destroy: tuple[Placement, ...]
    create: tuple[Placement, ...]
    gain_millislice_s: int
    drained_millislice_s: int
    reason: str
    asked: tuple[Placement, ...]
    ends: tuple[str, ...] = ()


def plan(
    board: Board,
    gpus: Iterable[GpuState],
    demand: InstanceDemand,
    terms: RepartitionTerms,
    can_be: CanBe = lambda _: True,
) -> tuple[GpuPlan, ...]:
    """The repartitions to make now, best first; empty if no change pays for itself.

    No change is chosen that ``can_be`` refuses beside the others of its node.
    """
    return tuple(_Planner(board, tuple(gpus), demand, terms, can_be).steps())


@dataclass(frozen=True)
class _Class:
    """GPUs that are cut and held alike, and the possible changes of each of them."""

    gpus: tuple[GpuState, ...]
    changes: tuple[LayoutChange, ...]


class _For(Enum):
    """For whom a change is made: any job, one within a guarantee, or one that is owed its type."""

    ANY = "any"
    GUARANTEED = "guaranteed"
    OWED = "owed"


@dataclass(frozen=True)
class _Option:
    """A change of one GPU. ``net``: millislice-seconds gained, less ``margin`` times drained."""

    gpu: GpuState
    change: LayoutChange
    net: int
    whom: _For = _For.ANY


class _Planner:
    """Chooses changes, and tracks which instances are free with the chosen ones.

    ``_spare`` are existing free instances that stay: replicas can move to these.
    """

    def __init__(
        self,
        board: Board,
        gpus: Sequence[GpuState],
        demand: InstanceDemand,
        terms: RepartitionTerms,
        can_be: CanBe,
    ) -> None:
        self._gpus, self._demand, self._terms = gpus, demand, terms
        self._can_be = can_be
        self._costs = {n: int(cost_millislices(board, n, Fraction(1))) for n in board.profiles}
        instances = [instance for gpu in gpus for instance in gpu.instances]
        self._geometry, self._there = geometry(board), _counted(instances)
        self._held = _counted(instance for instance in instances if not _is_free(instance, terms))
        self._free = _counted(instance for instance in instances if _is_free(instance, terms))
        self._reach = _counted(
            instance
            for instance in instances
            if _is_free(instance, terms) or instance.on_loan_s is not None
        )
        self._places = places(gpus)
        self._spare = _counted(
            instance
            for gpu in gpus
            if not gpu.in_work
            for instance in gpu.instances
            if instance.holder is None
        )
        # Instances that chosen changes create do not count here: they may not come to exist.
        self._unclaimed = _counted(instances) - Counter(demand.claimed)
        self._beyond = self._unclaimed & (_counted(instances) - Counter(demand.guaranteed))
        self._worth = worth(demand, self._costs, self._held, terms.horizon_s)
        own = InstanceDemand(tuple(request for request in demand.waiting if request.is_guaranteed))
        self._worth_to_owners = worth(own, self._costs, self._held, terms.horizon_s)
        owed = InstanceDemand(tuple(request for request in demand.waiting if request.is_owed))
        self._worth_if_owed = worth(owed, self._costs, self._held, terms.horizon_s)
        self._owed = frozenset(request.profile for request in owed.waiting)
        self._classes = self._alike(self._geometry)
        self._chosen: dict[str, _Option] = {}

    def steps(self) -> Iterator[GpuPlan]:
        """The steps of the better of two plans, the one with the highest net gain first.

        One plan takes the highest net gain first, the other the highest net gain for what is
        drained; neither is always the better. A change may pay only once others are made, and a run
        may end after any step, so the order is decided once all changes are known.
        """
        plans = [self._filled(by_cost=by_cost) for by_cost in (False, True)]
        best = max(plans, key=self._total)
        left, chosen, steps = list(best), [], []
        while left:
            option = max(left, key=lambda change: (change.whom is _For.OWED, self._net_now(change)))
            left.remove(option)
            chosen.append(option)
            steps.append(self._step(option))
            self._take(option)
            self._there.update(option.change.more_in_reach)
        for option, step in zip(chosen, steps, strict=True):
            created = self._full(option)
            rest = Counter(placement.profile for placement in created)
            rest.subtract(placement.profile for placement in step.asked)
            self._free.update(rest)
            self._there.update(rest)
            yield replace(step, create=created, reason=f"{step.reason}{_rest_words(+rest)}")

    def _full(self, option: _Option) -> tuple[Placement, ...]:
        """All instances to create on that GPU, as if the chosen changes were made already."""
        stays = {instance.placement for instance in option.gpu.instances}
        stays -= {instance_state.placement for instance_state in option.change.destroyed}
        waiting = Counter(request.profile for request in self._demand.waiting)
        missing = Counter(self._demand.guaranteed) - self._there
        uses = PossibleUses(
            profiles=self._wanted(option.gpu) | missing.keys(),
            missing=missing,
            awaited=(waiting - self._free).keys(),
            gain=lambda more: self._worth.gain(self._free, more),
            costs_millislices=self._costs,
        )
        return full(self._geometry, stays, option.change.created, uses)

    def _filled(self, *, by_cost: bool) -> Sequence[_Option]:
        """Choose changes: the next best while one pays, then better ones in exchange.

        First, jobs get what they are owed. Last, jobs that still wait within a guarantee get what
        other tenants only may claim.
        """
        while self._owed and (option := self._best(_For.OWED)):
            self._take(option)
        while option := self._best(by_cost=by_cost):
            self._take(option)
        for _ in range(_ROUNDS):
            others = [change for change in self._chosen.values() if change.whom is not _For.OWED]
            if not sum(self._exchange(option) for option in others):
                break
        while option := self._best(_For.GUARANTEED, by_cost=by_cost):
            self._take(option)
        chosen = tuple(self._chosen.values())
        for option in chosen:
            self._drop(option)
        return chosen

    def _total(self, chosen: Sequence[_Option]) -> int:
        more = Counter[str]()
        for option in chosen:
            more.update(option.change.more)
        drained = sum(option.change.drained_millislice_s for option in chosen)
        return self._net(more, drained)

    def _exchange(self, old: _Option) -> bool:
        """Replace a chosen change by a better one, or drop it if it does not pay.

        Returns whether the choice changed.
        """
        self._drop(old)
        net, best = self._net_now(old), self._best()
        if best is None or best.net <= max(net, 0):
            if net > 0:
                self._take(old)
            return net <= 0
        self._take(best)
        return True

    def _best(self, whom: _For = _For.ANY, *, by_cost: bool = False) -> _Option | None:
        nodes = {gpu.node for gpu in self._gpus if gpu.in_work}
        nodes |= {option.gpu.node for option in self._chosen.values()}
        is_full = len(nodes) >= self._terms.nodes_at_once
        best, most = None, 0.0
        for alike in self._classes:
            gpus = [
                gpu
                for gpu in alike.gpus
                if gpu.name not in self._chosen and not (is_full and gpu.node not in nodes)
            ]
            for change in alike.changes if gpus else ():
                drained = change.drained_millislice_s
                net = self._net_of(change, whom)
                score = net / drained if by_cost else net
                if net > 0 and score > most and (gpu := self._first(gpus, nodes, change, whom)):
                    best, most = _Option(gpu, change, net, whom), score
        return best

    def _first(
        self,
        gpus: Sequence[GpuState],
        nodes: Collection[str],
        change: LayoutChange,
        whom: _For,
    ) -> GpuState | None:
        """The first of these GPUs that can be changed so, those on ``nodes`` before others."""
        for gpu in sorted(gpus, key=lambda change: change.node not in nodes):
            beside = [
                (option.gpu, option.change)
                for option in self._chosen.values()
                if option.gpu.node == gpu.node
            ]
            if self._can_move(gpu, change, whom) and self._can_be((*beside, (gpu, change))):
                return gpu
        return None

    def _can_move(self, gpu: GpuState, change: LayoutChange, whom: _For) -> bool:
        """Whether replicas find places, with this change beside the chosen ones."""
        options = (*self._chosen.values(), _Option(gpu, change, 0, whom))
        return self._places.suffice(
            (option.gpu.node, instance_state, option.whom is _For.OWED)
            for option in options
            for instance_state in option.change.destroyed
        )

    def _net_of(self, change: LayoutChange, whom: _For) -> int:
        """Net gain of a change beside the chosen ones; 0 if the change is not possible.

        It is possible if replicas that move find instances, and what guarantees need stays.
        """
        drained = change.drained_millislice_s
        if whom is not _For.OWED and any(
            self._spare[profile] < count for profile, count in change.spent.items()
        ):
            return 0
        if whom is _For.OWED and _within(self._unclaimed, change.fewer):
            gain = self._worth_if_owed.gain(self._reach, change.more_in_reach)
            # What others lose decides who loses, and not whether a guarantee holds.
            lost = min(change.lost_millislice_s, round(gain) // 2)
            return round(gain) - self._terms.margin * drained - lost
        if change.ends or whom is _For.OWED:
            return 0
        if _within(self._beyond, change.fewer):
            return self._net(change.more, drained)
        if whom is _For.ANY or not _within(self._unclaimed, change.fewer):
            return 0
        gain = self._worth_to_owners.gain(self._free, change.more)
        return round(gain) - self._terms.margin * drained

    def _net_now(self, option: _Option) -> int:
        return self._net(option.change.more, option.change.drained_millislice_s)

    def _net(self, more: Mapping[str, int], drained_millislice_s: int) -> int:
        gain = self._worth.gain(self._free, more)
        return round(gain) - self._terms.margin * drained_millislice_s

    def _take(self, option: _Option) -> None:
        self._chosen[option.gpu.name] = option
        self._free.update(option.change.more)
        self._reach.update(option.change.more_in_reach)
        self._spare.subtract(option.change.spent)
        self._beyond.subtract(option.change.fewer)
        self._unclaimed.subtract(option.change.fewer)

    def _drop(self, option: _Option) -> None:
        del self._chosen[option.gpu.name]
        self._free.subtract(option.change.more)
        self._reach.subtract(option.change.more_in_reach)
        self._spare.update(option.change.spent)
        self._beyond.update(option.change.fewer)
        self._unclaimed.update(option.change.fewer)

    def _alike(self, geometry_of: Geometry) -> Sequence[_Class]:
        alike = defaultdict[tuple[GpuState, frozenset[str]], list[GpuState]](list)
        for gpu in self._gpus:
            if not gpu.in_work:
                alike[_nameless(gpu), self._wanted(gpu)].append(gpu)
        repartition_s, costs = self._terms.repartition_s, self._costs
        return [
            _Class(tuple(gpus), _least(changes(geometry_of, gpu, wanted, costs, repartition_s)))
            for (gpu, wanted), gpus in alike.items()
        ]

    def _wanted(self, gpu: GpuState) -> frozenset[str]:
        """Profiles that may be cut out of a GPU.

        Out of a GPU that was just cut these are only the profiles that were asked for since, or
        are owed. Where that was in vain, what is owed is cut elsewhere: what was in its way may be
        there again, and each try reserves the node.
        """
        cut_ago_s = gpu.cut_ago_s
        if cut_ago_s is None or cut_ago_s >= self._terms.horizon_s:
            return self._demand.profiles
        since = {w.profile for w in self._demand.waiting if w.waited_s < cut_ago_s}
        return frozenset(since) if gpu.in_vain else self._owed | since

    def _step(self, option: _Option) -> GpuPlan:
        gpu, change = option.gpu, option.change
        gone = {instance_state.placement for instance_state in change.destroyed}
        asked = tuple(sorted(change.created))
        held = [
            instance for instance in gpu.instances if instance.placement in gone and instance.holder
        ]
        return GpuPlan(
            gpu=gpu.name,
            node=gpu.node,
            moves=tuple(
                instance_state.holder.name
                for instance_state in held
                if isinstance(instance_state.holder, ReplicaHolder)
            ),
            destroy=tuple(sorted(gone)),
            create=asked,
            gain_millislice_s=round(self._worth.gain(self._free, change.more)),
            drained_millislice_s=change.drained_millislice_s,
            reason=self._reason(change),
            asked=asked,
            ends=tuple(
                instance_state.holder.name
                for instance_state in held
                if isinstance(instance_state.holder, JobHolder)
            ),
        )

    def _reason(self, change: LayoutChange) -> str:
        waiting = Counter(request.profile for request in self._demand.waiting)
        created = "; ".join(
            f"{count} {name} more: {waiting[name]} wait, {self._free[name]} free, "
            f"{self._held[name]} held, {self._demand.expected.get(name, 0):.1f} expected"
            for name, count in sorted(
                Counter(placement.profile for placement in change.created).items()
            )
        )
        gone = Counter(instance_state.placement.profile for instance_state in change.destroyed)
        moving = f", {sum(change.moves.values())} of them after a move" if change.moves else ""
        if change.ends:
            moving += f", {change.ends} of them on loan, for jobs that are owed theirs"
        less = ", ".join(f"{count} {name}" for name, count in sorted(gone.items()))
        return f"{created}; less: {less}{moving}" if less else created


def _within(room: Mapping[str, int], fewer: Mapping[str, int]) -> bool:
    return all(room[profile] >= count for profile, count in fewer.items())


def _rest_words(rest: Mapping[str, int]) -> str:
    words = ", ".join(f"{count} {name}" for name, count in sorted(rest.items()))
    return f"; the rest: {words}" if words else ""


def _least(layout_changes: Iterable[LayoutChange]) -> tuple[LayoutChange, ...]:
    """Of changes with the same effect, the one that drains the least, then the first in order."""
    least: dict[tuple[frozenset[tuple[str, int]], ...], LayoutChange] = {}
    for layout_change in sorted(layout_changes, key=_loss):
        effects = layout_change.more, layout_change.more_in_reach, layout_change.spent
        least.setdefault(tuple(frozenset(those.items()) for those in effects), layout_change)
    return tuple(least.values())


def _loss(change: LayoutChange) -> tuple[int, Sequence[Placement]]:
    return change.drained_millislice_s + change.lost_millislice_s, sorted(change.created)


def _is_free(instance: InstanceState, terms: RepartitionTerms) -> bool:
    """Whether an instance is free, or its job ends before a repartition could be done."""
    holder = instance.holder
    if isinstance(holder, JobHolder):
        return holder.ends_in_s is not None and holder.ends_in_s <= terms.repartition_s
    return holder is None


def _counted(instances: Iterable[InstanceState]) -> Counter[str]:
    return Counter(instance.placement.profile for instance in instances)


def _nameless(gpu: GpuState) -> GpuState:
    return GpuState("", "", tuple(sorted(map(_anybody, gpu.instances), key=_PLACE)))


def _anybody(instance: InstanceState) -> InstanceState:
    match instance.holder:
        case JobHolder(on_loan_s=on_loan_s):
            return InstanceState(instance.placement, JobHolder("", on_loan_s=on_loan_s))
        case ReplicaHolder() as replica:
            return InstanceState(instance.placement, replace(replica, name=""))
        case None:
            return instance
