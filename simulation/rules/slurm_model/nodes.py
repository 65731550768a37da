"""The nodes of the model: what each has free, where a job would fit, and what a node looks like.

Sets of nodes are whole numbers with a bit for each node, as slurmctld's own bitmaps: a cluster's
worth of nodes is compared in one step.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from slicewise.cluster.language.jobs import NodeView
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.slurm_model.job_records import JobRecord, Shape

ANY_TYPE = ""
"""GRES type of GPUs that were asked for without one."""


def bits(mask: int) -> Iterator[int]:
    """The nodes of a set, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def as_mask(nodes: Iterable[int]) -> int:
    """The set of these nodes."""
    mask = 0
    for i in nodes:
        mask |= 1 << i
    return mask


@dataclass
class ModelNode:
    """One node as it is now.

    Attributes:
        gpus: configured, by type, in gres.conf's order.
        free: GPUs that no job holds, by type.
        indices: free GPUs as sets of indices in gres.conf's order, by type.
        jobs: the jobs that hold something, by id.
        by_qos: how many jobs of a QOS there are, and how many GPUs they hold.
        is_reserved: whether a maintenance reservation lets nothing start; what runs goes on.
    """

    name: str
    partitions: frozenset[str]
    weight: int
    cpus: int
    memory_mib: int
    gpus: dict[str, int]
    free: dict[str, int] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)
    free_cpus: int = 0
    free_memory_mib: int = 0
    jobs: dict[int, JobRecord] = field(default_factory=dict)
    by_qos: dict[str, tuple[int, int]] = field(default_factory=dict)
    is_up: bool = True
    is_reserved: bool = False
    view: NodeView | None = None

    @property
    def takes_jobs(self) -> bool:
        """Whether jobs may start on it."""
        return self.is_up and not self.is_reserved

    def reset(self) -> None:
        """Make everything free."""
        self.free, self.indices = dict(self.gpus), _runs(self.gpus)
        self.free_cpus, self.free_memory_mib = self.cpus, self.memory_mib

    def cut(self, gpus: Mapping[str, int]) -> None:
        """Take other GPUs beside the jobs, which keep the indices of theirs.

        Raises ValueError, and changes nothing, if one of these would be of another type.
        """
        free, indices = dict(gpus), _runs(gpus)
        for job in self.jobs.values():
            for owner, kind, count, held in job.held_gpus:
                if owner is not self:
                    continue
                if held & ~indices.get(kind, 0):
                    raise ValueError(f"{self.name}: job {job.job_id} holds {kind} that would go")
                indices[kind] ^= held
                free[kind] -= count
        self.gpus, self.free, self.indices = dict(gpus), free, indices

    def holds_at_all(self, shape: Shape) -> bool:
        """Whether the node could have such a job, if it were empty."""
        return self._fits(shape, self.gpus, self.cpus, self.memory_mib)

    def fits(self, shape: Shape) -> bool:
        """Whether the node has room for such a job now."""
        return self.takes_jobs and self._fits(
            shape, self.free, self.free_cpus, self.free_memory_mib
        )

    def fits_beside(self, shape: Shape, gone: Mapping[str, int], cpus: int, memory: int) -> bool:
        """Whether it has room once these GPUs, CPUs and MiB are free, too."""
        free = {kind: count + gone.get(kind, 0) for kind, count in self.free.items()}
        return self._fits(shape, free, self.free_cpus + cpus, self.free_memory_mib + memory)

    def _fits(self, shape: Shape, free: Mapping[str, int], cpus: int, memory: int) -> bool:
        for kind, count in shape.gpus:
            has = sum(free.values()) if kind == ANY_TYPE else free.get(kind, 0)
            if has < count:
                return False
        return (not self.cpus or shape.cpus <= cpus) and (
            not self.memory_mib or shape.memory_mib <= memory
        )

    def take(self, record: JobRecord) -> None:
        """Give the job what it asks for on this node: the free GPUs with the lowest indices."""
        for kind, count in record.shape.gpus:
            for own, part in self._split(kind, count):
                taken = _lowest(self.indices[own], part)
                self.indices[own] ^= taken
                self.free[own] -= part
                record.held_gpus.append((self, own, part, taken))
        self.free_cpus -= record.shape.cpus
        self.free_memory_mib -= record.shape.memory_mib
        self.jobs[record.job_id] = record
        self.count(record, 1)
        self.view = None

    def count(self, record: JobRecord, sign: int) -> None:
        """Count a job, or count it no longer."""
        jobs, gpus = self.by_qos.get(record.qos, (0, 0))
        mine = sum(count for _, count in record.shape.gpus)
        self.by_qos[record.qos] = jobs + sign, gpus + sign * mine

    def left(self, until_s: float) -> int:
        """CPUs that are free once all jobs are gone that end until then; GPUs where nobody counts
        CPUs.
        """
        gone = [job for job in self.jobs.values() if job.until_s <= until_s]
        if self.cpus:
            return self.free_cpus + sum(job_record.shape.cpus for job_record in gone)
        return sum(self.free.values()) + sum(
            count for job_record in gone for _, count in job_record.shape.gpus
        )

    def _split(self, kind: str, count: int) -> list[tuple[str, int]]:
        if kind != ANY_TYPE:
            return [(kind, count)]
        parts = []
        for own, free in self.free.items():
            part = min(free, count)
            count -= part
            if part:
                parts.append((own, part))
        return parts

    def shown(self) -> NodeView:
        """The node's record; the same object until something changes."""
        if self.view is None:
            allotted = {kind: count - self.free[kind] for kind, count in self.gpus.items()}
            free = sum(self.indices.values())
            everything = (1 << sum(self.gpus.values())) - 1
            self.view = NodeView(
                self.name,
                self.name,
                self._states(allotted),
                dict(self.gpus),
                {kind: count for kind, count in allotted.items() if count},
                self.partitions,
                self.weight,
                frozenset(bits(everything & ~free)),
                self._blocked(),
                self.cpus,
                1,
                self.memory_mib,
            )
        return self.view

    def _states(self, allotted: Mapping[str, int]) -> frozenset[str]:
        reserved = ("MAINT", "RESERVED") if self.is_reserved else ()
        return frozenset((self._state(allotted), *reserved))

    def _state(self, allotted: Mapping[str, int]) -> str:
        if not self.is_up:
            return "DOWN"
        if not self.jobs:
            return "IDLE"
        is_full = allotted == self.gpus if not self.cpus else self.free_cpus == 0
        return "ALLOCATED" if is_full else "MIXED"

    def _blocked(self) -> str:
        if self.cpus and self.free_cpus <= 0:
            return "no CPU is left"
        if self.memory_mib and self.free_memory_mib <= 0:
            return "no memory is left"
        return ""


def _runs(gpus: Mapping[str, int]) -> dict[str, int]:
    """The indices of each type, as sets: those of one type follow one another."""
    masks, first = {}, 0
    for kind, count in gpus.items():
        masks[kind] = ((1 << count) - 1) << first
        first += count
    return masks


def _lowest(indices: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        low = indices & -indices
        taken |= low
        indices ^= low
    return taken


class NodeTable:
    """All nodes, and for each shape of a job the nodes that have room for it.

    Those are found again only on nodes that changed since they were last asked for.

    Attributes:
        completing: the nodes on which a job is COMPLETING: as in Slurm no other starts there
            meanwhile.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.nodes = tuple(_node(node) for node in cluster.nodes)
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self.partitions: dict[str, int] = {}
        self._shapes: dict[tuple[tuple[tuple[str, int], ...], int, int], Shape] = {}
        self._rooms: dict[Shape, _Room] = {}
        self._emptied: dict[tuple[Shape, frozenset[str]], _Emptied] = {}
        self._changes: list[int] = []
        self.completing = 0
        self._completing = [0] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            node.reset()
            for partition in node.partitions:
                self.partitions[partition] = self.partitions.get(partition, 0) | 1 << i

    def shape(self, gpus: Mapping[str, int], cpus: int, memory_mib: int) -> Shape:
        """The shape of jobs that ask for this on each node."""
        key = (tuple(sorted(gpus.items())), cpus, memory_mib)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(*key)
        return shape

    def changed(self, i: int) -> None:
        """Note that something of this node is not as it was."""
        self.nodes[i].view = None
        self._changes.append(i)

    def free_now(self, shape: Shape) -> int:
        """The nodes that have room for such a job now."""
        return self._room(shape).mask

    def free_from(self, shape: Shape) -> list[tuple[float, int]]:
        """When each node has room if nothing else starts, the first ones first.

        It follows from the limits of the jobs that hold the node. -inf is now; nodes that never
        have room are left out.
        """
        return self._room(shape).order(self.nodes, shape)

    def free_without(self, shape: Shape, qos: frozenset[str]) -> int:
        """The nodes that might have room now if no job of these QOS were there.

        It counts GPUs of all types together.
        """
        emptied = self._emptied.get((shape, qos))
        if emptied is None:
            emptied = self._emptied[shape, qos] = _Emptied()
        for i in self._todo(emptied):
            emptied.look(i, self.nodes[i], shape, qos)
        return emptied.mask

    def free_ever(self, shape: Shape) -> int:
        """The nodes that take jobs and would have room for such a job if they were empty."""
        return self._room(shape).ever

    def out_of_use(self, shape: Shape, mask: int) -> tuple[str, ...]:
        """Names of the nodes among these that take no jobs and would have room if they did."""
        nodes = (self.nodes[i] for i in bits(mask))
        return tuple(
            node.name for node in nodes if not node.takes_jobs and node.holds_at_all(shape)
        )

    def choose(self, mask: int, count: int, until_s: float = -inf) -> tuple[int, ...]:
        """Choose nodes for a job among those with room for it, which must be enough.

        As ``_eval_nodes`` of select/cons_tres: nodes that follow one another and have one weight
        are a set. The set of the lowest weight goes first, then one that is large enough, then the
        one with the fewest CPUs left, or of sets that are too small with the most; in it a job of
        one node gets the node with the fewest CPUs left. ``until_s``: what holds nodes until then
        at the latest is taken to be gone.
        """
        if mask.bit_count() == count:
            return tuple(bits(mask))
        sets = self._neighbours(mask, until_s)
        chosen: list[int] = []
        while (missing := count - len(chosen)) > 0:
            rated = []
            for nth, (weight, left, found) in enumerate(sets):
                is_enough = len(found) >= missing
                rated.append((weight, not is_enough, left if is_enough else -left, nth))
            taken = sets.pop(min(rated)[-1])[-1]
            if missing == 1:
                taken.sort()
            chosen += [i for _, i in taken[:missing]]
        return tuple(sorted(chosen))

    def _neighbours(
        self, mask: int, until_s: float
    ) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """The sets of neighbours: weight, CPUs left in all, and those of each node."""
        sets: list[tuple[int, int, list[tuple[int, int]]]] = []
        before = -2
        for i in bits(mask):
            node = self.nodes[i]
            left = node.left(until_s)
            if i == before + 1 and sets[-1][0] == node.weight:
                weight, others, taken = sets[-1]
                taken.append((left, i))
                sets[-1] = weight, others + left, taken
            else:
                sets.append((node.weight, left, [(left, i)]))
            before = i
        return sets

    def complete_on(self, nodes: Iterable[int], sign: int) -> None:
        """Count a job that begins to complete on these nodes (1), or has completed (-1)."""
        for i in nodes:
            self._completing[i] += sign
            if self._completing[i]:
                self.completing |= 1 << i
            else:
                self.completing &= ~(1 << i)

    def take(self, record: JobRecord, nodes: tuple[int, ...]) -> None:
        """Give these nodes' GPUs to the job."""
        for i in nodes:
            self.nodes[i].take(record)
            self.changed(i)

    def give_back(self, record: JobRecord) -> None:
        """Take everything back that the job holds."""
        for node, kind, count, indices in record.held_gpus:
            if kind in node.free:
                node.free[kind] += count
                node.indices[kind] |= indices
        record.held_gpus.clear()
        for i in record.nodes:
            node = self.nodes[i]
            node.free_cpus += record.shape.cpus
            node.free_memory_mib += record.shape.memory_mib
            del node.jobs[record.job_id]
            node.count(record, -1)
            self.changed(i)

    def set_gpus(self, i: int, gpus: Mapping[str, int]) -> None:
        """Give a node that no job holds other GPUs."""
        node = self.nodes[i]
        node.gpus = dict(gpus)
        node.reset()
        self.changed(i)

    def cut(self, i: int, gpus: Mapping[str, int]) -> None:
        """Give a node other GPUs beside its jobs; ValueError as ``ModelNode.cut``."""
        self.nodes[i].cut(gpus)
        self.changed(i)

    def _room(self, shape: Shape) -> "_Room":
        room = self._rooms.get(shape)
        if room is None:
            room = self._rooms[shape] = _Room(len(self.nodes))
        for i in self._todo(room):
            room.look(i, self.nodes[i], shape)
        return room

    def _todo(self, room: "_Room | _Emptied") -> Iterable[int]:
        """The nodes that changed since the last call for this one."""
        seen, room.seen = room.seen, len(self._changes)
        if seen == room.seen:
            return ()
        return set(self._changes[seen:]) if seen >= 0 else range(len(self.nodes))


class _Room:
    """For one shape, which nodes have room now and when the others have."""

    def __init__(self, nodes: int) -> None:
        self.mask = 0
        self.ever = 0
        self.seen = -1
        self._from_s: list[float | None] = [inf] * nodes
        self._order: list[tuple[float, int]] | None = None

    def order(self, nodes: tuple[ModelNode, ...], shape: Shape) -> list[tuple[float, int]]:
        """When the nodes have room, sorted; it is found out only for nodes that changed."""
        if self._order is None:
            for i, at_s in enumerate(self._from_s):
                if at_s is None:
                    self._from_s[i] = _room_from_s(nodes[i], shape)
            order = ((at_s, i) for i, at_s in enumerate(self._from_s) if at_s is not None)
            self._order = sorted(entry for entry in order if entry[0] < inf)
        return self._order

    def look(self, i: int, node: ModelNode, shape: Shape) -> None:
        if node.takes_jobs and node.holds_at_all(shape):
            self.ever |= 1 << i
        else:
            self.ever &= ~(1 << i)
        self._order = None
        if node.fits(shape):
            self.mask |= 1 << i
            self._from_s[i] = -inf
        else:
            self.mask &= ~(1 << i)
            self._from_s[i] = None


class _Emptied:
    """For one shape, which nodes might have room without the jobs of some QOS."""

    def __init__(self) -> None:
        self.mask = 0
        self.seen = -1

    def look(self, i: int, node: ModelNode, shape: Shape, qos: frozenset[str]) -> None:
        need = sum(count for _, count in shape.gpus)
        counts = [node.by_qos.get(name, (0, 0)) for name in qos]
        gpus = sum(count for _, count in counts) + sum(node.free.values())
        may = gpus >= need and any(jobs for jobs, _ in counts) and node.holds_at_all(shape)
        if node.takes_jobs and (may or node.fits(shape)):
            self.mask |= 1 << i
        else:
            self.mask &= ~(1 << i)


def _room_from_s(node: ModelNode, shape: Shape) -> float:
    if not node.takes_jobs or not node.holds_at_all(shape):
        return inf
    gone: dict[str, int] = {}
    cpus = memory = 0
    for job in sorted(node.jobs.values(), key=lambda job: (job.until_s, job.job_id)):
        if job.until_s == inf:
            return inf
        for owner, kind, count, _ in job.held_gpus:
            if owner is node:
                gone[kind] = gone.get(kind, 0) + count
        cpus += job.shape.cpus
        memory += job.shape.memory_mib
        if node.fits_beside(shape, gone, cpus, memory):
            return job.until_s
    return inf


def _node(simulated_node: SimulatedNode) -> ModelNode:
    return ModelNode(
        simulated_node.name,
        simulated_node.partitions,
        simulated_node.weight,
        simulated_node.cpus,
        simulated_node.memory_mib,
        dict(simulated_node.gpus),
    )
