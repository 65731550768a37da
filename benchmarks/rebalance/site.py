"""Generates a large site for one run of ``slicewise rebalance``: its tenants, jobs and GPUs.

First some tenants leave their quota idle and others borrow it; then jobs of the idle tenants come.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from slicewise.cluster.language.gpus.inventory import (
    ComputeInstance,
    Gpu,
    Health,
    Instance,
    Inventory,
)
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.jobs import JobState, JobTag, JobView, NodeView, RunRecord
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Policy,
    Quota,
    Tenant,
)
from slicewise.slurm_plugin.rules.slurm_config.gres import (
    Device,
    devices,
    gres_conf,
    node_gres,
    types_by_kind,
)
from slicewise.slurm_plugin.rules.slurm_config.node_lines import padded, room

ONE, THREE = "1g.10gb", "3g.40gb"
COSTS: Mapping[str, Millislices] = {ONE: Millislices(1000), THREE: Millislices(3500)}
PARTITION = "gpu"
GPUS_PER_NODE = 8
_BOARD = board("A100-80GB")
_TYPES = types_by_kind({ONE: _BOARD, THREE: _BOARD})
_LAYOUTS = (
    tuple(Placement(ONE, start, 1) for start in range(7)),
    (Placement(THREE, 0, 4), Placement(THREE, 4, 4)),
)
_DIVISIONS, _GROUPS = 10, 90
_SLOTS = 8
_USERS_FROM = 10_000
_SIZES = (
    (THREE, 1, 0.35),
    (THREE, 2, 0.15),
    (ONE, 1, 0.1),
    (ONE, 4, 0.2),
    (ONE, 8, 0.2),
)
"""Type, number of instances, and share of jobs."""
_STILL_AT_WORK = 0.1
"""Share of jobs that are of any tenant; the others are of tenants that use all of their quota."""


@dataclass(frozen=True)
class Size:
    """How large the site is; each of the ``services`` has eight slots."""

    tenants: int = 1_000
    jobs: int = 20_000
    gpus: int = 10_000
    services: int = 400


@dataclass(frozen=True)
class Site:
    """The site at one moment.

    Attributes:
        ended: runs that accounting shows as ended, which the ledger does not know yet.
        indices: indices of the GPUs that running jobs hold, by job id and node.
    """

    policy: Policy
    jobs: tuple[JobView, ...]
    nodes: tuple[NodeView, ...]
    ended: tuple[RunRecord, ...]
    indices: Mapping[int, Mapping[str, frozenset[int]]]


def policy(size: Size) -> Policy:
    """Divisions, groups in them, tenants in these; a tenth has budgets, another type limits."""
    tenants: dict[str, Tenant] = {}
    for number in range(_DIVISIONS):
        tenants[f"division{number}"] = Tenant(f"division{number}", "", _quota(0))
    for number in range(_GROUPS):
        above = f"division{number % _DIVISIONS}"
        tenants[f"group{number}"] = Tenant(f"group{number}", above, _quota(0))
    leaves = size.tenants - len(tenants)
    each = _millislices(size) // leaves // 1000 * 1000
    budget = Budget(Period.MONTH, MillisliceSeconds(10**12))
    for number in range(leaves):
        name, above = _tenant(number), f"group{number % _GROUPS}"
        limits = {THREE: 100} if number % 10 == 1 else {}
        quota = replace(_quota(each), type_limits=limits)
        tenants[name] = Tenant(name, above, quota, budget if number % 10 == 0 else None)
    return tenants


def _quota(nominal: int) -> Quota:
    return Quota(Millislices(nominal), MAX_NOMINAL_MILLISLICES, MAX_NOMINAL_MILLISLICES)


def _tenant(number: int) -> str:
    return f"tenant{number:04}"


def _millislices(size: Size) -> int:
    return size.gpus * 7 * 1000


def nodes(size: Size) -> Sequence[NodeView]:
    """Nodes of eight GPUs; in every other node a GPU is cut into seven 1g, else into two 3g."""
    return [
        NodeView(
            name=f"gpu{number:04}",
            address=f"10.0.{number // 250}.{number % 250}",
            states=frozenset({"MIXED"}),
            gpus={_kind(number): GPUS_PER_NODE * len(_LAYOUTS[number % 2])},
            gpus_allotted={},
            partitions=frozenset({PARTITION}),
        )
        for number in range(size.gpus // GPUS_PER_NODE)
    ]


def _kind(node: int) -> str:
    return (ONE, THREE)[node % 2]


class _Crowd:
    """Draws jobs one after the other, and puts each running job on a node with room."""

    def __init__(self, size: Size, seed: int, now_s: int) -> None:
        self._size = size
        self._now_s = now_s
        self._chance = random.Random(seed)  # noqa: S311 -- no secret
        self._tenants = policy(size)
        self._leaves = [name for name in self._tenants if name.startswith("tenant")]
        self._left = Counter(
            {name: self._tenants[name].quota.nominal_millislices for name in self._leaves}
        )
        self._nodes = {node.name: node for node in nodes(size)}
        self._open = {
            kind: [n for n, one in self._nodes.items() if kind in one.gpus] for kind in COSTS
        }
        self._taken = Counter[str]()
        self.indices: dict[int, Mapping[str, frozenset[int]]] = {}
        self._job_id = 0

    def running(self, count: int) -> Iterator[JobView]:
        """Running jobs: every third tenant leaves most of its quota idle, and the others borrow."""
        busy = [name for number, name in enumerate(self._leaves) if number % 3]
        for _ in range(count):
            kind, instances = self._size_of_one()
            owner = self._chance.choice(
                self._leaves if self._chance.random() < _STILL_AT_WORK else busy
            )
            job = self._started(self._waiting(owner, kind, instances), kind, instances)
            if job is not None:
                yield job

    def replicas(self) -> Iterator[JobView]:
        """Jobs of services' slots: most run on borrowed quota, the others are held."""
        busy = [name for number, name in enumerate(self._leaves) if number % 3]
        for number in range(self._size.services):
            kind = (ONE, THREE)[number % 2]
            array, owner = self._job_id + 1, busy[number % len(busy)]
            self._left[owner] = 0
            for index in range(_SLOTS):
                slot = self._waiting(owner, kind, 1, f"service{number}")
                slot = replace(slot, array_job_id=array, task_index=index)
                started = self._started(slot, kind, 1) if index < _SLOTS - 2 else None
                held = replace(slot, held=True, priority=0, reason="JobHeldAdmin")
                held = replace(held, qos=borrowed_qos(owner))
                yield started or held

    def lenders(self, count: int) -> Iterator[JobView]:
        """Waiting jobs of tenants that had left quota idle; every tenth record has ten tasks."""
        idle = [name for number, name in enumerate(self._leaves) if number % 3 == 0]
        for number in range(count):
            kind, instances = self._size_of_one()
            owner = self._chance.choice(idle)
            job = replace(
                self._waiting(owner, kind, instances),
                reason="QOSGrpBilling",
                submit_s=self._now_s,
            )
            if number % 10:
                yield job
            else:
                yield replace(job, array_job_id=job.job_id, untouched=frozenset(range(10)))

    def borrowers(self, count: int) -> Iterator[JobView]:
        """Jobs that wait for more borrowed quota."""
        busy = [name for number, name in enumerate(self._leaves) if number % 3]
        for _ in range(count):
            kind, instances = self._size_of_one()
            job = self._waiting(self._chance.choice(busy), kind, instances)
            yield replace(job, qos=borrowed_qos(job.account))

    def _room(self, node: str, kind: str) -> int:
        return self._nodes[node].gpus[kind] - self._taken[node]

    def _size_of_one(self) -> tuple[str, int]:
        found = self._chance.choices(_SIZES, [share for *_, share in _SIZES])
        return found[0][0], found[0][1]

    def _waiting(self, owner: str, kind: str, instances: int, service: str = "") -> JobView:
        self._job_id += 1
        tag = JobTag(f"{self._job_id:016x}", owner, service or None, is_flexible=not service)
        since_s = self._now_s - self._chance.randrange(60, 7200)
        cost = COSTS[kind] * instances
        return JobView(
            job_id=self._job_id,
            array_job_id=None,
            task_index=None,
            untouched=frozenset(),
            name=service or "train",
            user=f"user{owner}",
            uid=_USERS_FROM,
            account=owner,
            partition=PARTITION,
            qos=qos_name(owner),
            state=JobState.PENDING,
            reason="Resources",
            held=False,
            priority=self._chance.randrange(1, 10_000),
            admin_comment=tag.text(),
            comment="",
            tres={
                "cpu": "1",
                "node": "1",
                "billing": str(cost),
                f"gres/gpu:{kind}": str(instances),
            },
            nodes=(),
            submit_s=since_s,
            start_s=None,
            end_s=None,
            eligible_s=since_s,
            time_limit_s=self._chance.choice((3600, 14_400, 86_400)),
            restarts=0,
        )

    def _started(self, job: JobView, kind: str, instances: int) -> JobView | None:
        """The job, running on a node with room; None if no node has room for it any more."""
        there = self._open[kind]
        while there and self._room(there[-1], kind) == 0:
            there.pop()
        fitting = (name for name in reversed(there) if self._room(name, kind) >= instances)
        node = next(fitting, None)
        if node is None:
            return None
        first = self._taken[node]
        self._taken[node] += instances
        self.indices[job.job_id] = {node: frozenset(range(first, first + instances))}
        cost = COSTS[kind] * instances
        is_own = self._left[job.account] >= cost
        self._left[job.account] -= cost * is_own
        start_s = (job.submit_s or 0) + 30
        return replace(
            job,
            state=JobState.RUNNING,
            reason="None",
            qos=(qos_name if is_own else borrowed_qos)(job.account),
            nodes=(node,),
            start_s=start_s,
            end_s=start_s + (job.time_limit_s or 0),
        )


def idle_lenders(size: Size, seed: int, now_s: int) -> Site:
    """The site before the lenders' jobs come."""
    return _site(size, seed, now_s, lenders=0, new=0)


def short_lenders(size: Size, seed: int, now_s: int) -> Site:
    """The site a few minutes later: lenders' jobs wait, some runs have ended, some are new."""
    return _site(size, seed, now_s, lenders=size.jobs // 10, new=size.jobs // 50)


def _site(size: Size, seed: int, now_s: int, *, lenders: int, new: int) -> Site:
    crowd = _Crowd(size, seed, now_s)
    slots = list(crowd.replicas())
    running = list(crowd.running(size.jobs * 7 // 10))
    waiting = list(crowd.borrowers(size.jobs + new - len(slots) - len(running) - size.jobs // 10))
    wanting = list(crowd.lenders(size.jobs // 10))[:lenders]
    # A few minutes later the first runs have ended; before, the last runs have not begun.
    there = running[new:] if new else running[: len(running) - size.jobs // 50]
    gone = running[:new]
    jobs = (*slots, *there, *waiting, *wanting)
    live = {job.job_id for job in jobs if job.state is JobState.RUNNING}
    indices = {job_id: found for job_id, found in crowd.indices.items() if job_id in live}
    return Site(
        policy=policy(size),
        jobs=jobs,
        nodes=tuple(_held(nodes(size), indices)),
        ended=tuple(_record(job, now_s - 5) for job in gone),
        indices=indices,
    )


def _held(
    found: Sequence[NodeView], indices: Mapping[int, Mapping[str, frozenset[int]]]
) -> Iterator[NodeView]:
    held: dict[str, set[int]] = {node.name: set() for node in found}
    for places in indices.values():
        for name, those in places.items():
            held[name] |= those
    for node in found:
        those = frozenset(held[node.name])
        yield replace(node, gpus_allotted={next(iter(node.gpus)): len(those)}, gpus_held=those)


def _record(job: JobView, end_s: int | None) -> RunRecord:
    return RunRecord(
        job_id=job.job_id,
        task=str(job.job_id),
        user=job.user,
        account=job.account,
        partition=job.partition,
        start_s=job.start_s or 0,
        end_s=end_s,
        state="COMPLETED" if end_s else "RUNNING",
        time_limit_s=job.time_limit_s,
        tres=job.tres,
    )


def records(site: Site) -> tuple[RunRecord, ...]:
    """Accounting's records: the runs that have ended, and all that run."""
    running = (_record(job, None) for job in site.jobs if job.state is JobState.RUNNING)
    return (*site.ended, *running)


def directives(site: Site) -> Mapping[int, str]:
    """The batch scripts of the services' arrays, by array job id."""
    scripts: dict[int, str] = {}
    for job in site.jobs:
        tag = JobTag.find(job.admin_comment)
        if job.array_job_id is not None and tag is not None and tag.service is not None:
            words = (f"name={tag.service}", f"tenant={tag.tenant}", f"max_replicas={_SLOTS}")
            lines = "".join(f"#SLICEWISE {word}\n" for word in words)
            scripts[job.array_job_id] = f"#!/bin/bash\n{lines}"
    return scripts


def inventories(found: Sequence[NodeView]) -> Mapping[str, object]:
    """What the driver of each node would report, as JSON values by node."""
    texts = [json.dumps(asdict(_inventory(layout))) for layout in _LAYOUTS]
    return {
        node.name: json.loads(texts[number % 2].replace("GPU-", f"GPU-{node.name}-"))
        for number, node in enumerate(found)
    }


def files(found: Sequence[NodeView]) -> tuple[str, str]:
    """The texts of slurm.conf and gres.conf."""
    there = [_devices(layout) for layout in _LAYOUTS]
    gres = [node_gres(one) for one in there]
    lines = [gres_conf("NODE", one) for one in there]
    slurm = [f"NodeName={node.name} CPUs=64 Gres={gres[n % 2]}" for n, node in enumerate(found)]
    own = [
        line.replace("NODE", node.name, 1) for n, node in enumerate(found) for line in lines[n % 2]
    ]
    return "\n".join(("ClusterName=bench", *slurm, "")), "\n".join((*own, ""))


def _devices(layout: Sequence[Placement]) -> Sequence[Device]:
    """A node's devices, padded up to as many as its GPUs have room for."""
    inventory = _inventory(layout)
    found = devices(inventory, _TYPES)
    arranged = (*found, *([None] * (room(inventory) - len(found))))
    return padded(arranged, inventory.vendor, "/dev")


def _inventory(layout: Sequence[Placement]) -> Inventory:
    return Inventory("570.1", tuple(_gpu(number, layout) for number in range(GPUS_PER_NODE)), ())


def _gpu(number: int, layout: Sequence[Placement]) -> Gpu:
    return Gpu(
        index=number,
        name="NVIDIA A100-SXM4-80GB",
        uuid=f"GPU-{number}",
        pci_bus_id=f"00000000:{number:02X}:00.0",
        pci_device_id=_BOARD.pci_device_ids[0],
        minor=number,
        board=_BOARD,
        mig=True,
        mig_pending=True,
        memory_mib=81_920,
        memory_used_mib=0,
        power_mw=None,
        power_limit_mw=None,
        temperature_c=None,
        health=Health(None, None, None, None, None),
        instances=tuple(
            _instance(number, position, placement) for position, placement in enumerate(layout)
        ),
        holders=(),
    )


def _instance(gpu: int, number: int, placement: Placement) -> Instance:
    minor = 1000 * gpu + 10 * number
    compute = ComputeInstance(0, f"MIG-{gpu}-{number}", minor + 1, ())
    return Instance(number + 1, placement, None, minor, (compute,))
