"""One GPU node, slurmctld and a journal, where each call may be the last of its process."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from builders.ledger_parts import LedgerParts
from builders.nodes import a_node
from no_threads import no_threads

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.inventory import (
    ComputeInstance,
    Gpu,
    Health,
    Instance,
    Inventory,
)
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)
from slicewise.cluster.language.gres import parse_gpu_requests
from slicewise.cluster.language.jobs import NodeView, RunOfJob
from slicewise.slurm_plugin.repartition.actions import RepartitionActions
from slicewise.slurm_plugin.repartition.executor import Executor
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    UNFINISHED,
    Next,
)
from slicewise.slurm_plugin.rules.slurm_config import gres as slurm_gres
from slicewise.slurm_plugin.rules.slurm_config import node_lines
from slicewise.slurm_plugin.rules.slurm_config.gres import Device

A100 = board("A100-80GB")
NODE, GPU = "gpu01", "GPU-a"
BEFORE = tuple(Placement("1g.10gb", start, 1) for start in range(7))
AFTER = (*BEFORE[:4], Placement("3g.40gb", 4, 4))
STAYING_JOB, MOVING_JOB = 11, 12
START_S = 1_000
"""When both have started."""
_TYPES = slurm_gres.types_by_kind({"1g.10gb": A100, "3g.40gb": A100})
_RESERVED_S = 60


class Killed(BaseException):
    """kill -9: nothing catches it."""


class IllegalError(BaseException):
    """A call that must not come in this state; the executor does not treat it as a failure."""


def must(legal: bool, words: str = "") -> None:
    if not legal:
        raise IllegalError(words)


@dataclass
class Crashes:
    """Which call to Slurm, the node or the journal dies or fails; they count from 1 on.

    Attributes:
        kill_at: number of the call in which the process dies; 0 for none.
        after: whether that call has had its effect before.
        fail: names of calls that fail, and how often; -1 is always.
    """

    kill_at: int = 0
    after: bool = False
    fail: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    @contextmanager
    def call(self, name: str):
        self.calls.append(name)
        dies = len(self.calls) == self.kill_at
        if dies and not self.after:
            raise Killed
        if left := self.fail.get(name, 0):
            self.fail[name] = left - 1
            if dies:
                raise Killed
            raise OutsideError("SW-SLURM-FAILED", f"{name} failed")
        yield
        if dies:
            raise Killed


class MemoryJournal(LedgerParts):
    """The ledger's journal of repartitions, in memory."""

    def __init__(self, crashes: Crashes) -> None:
        self.crashes = crashes
        self.kept: dict[int, Repartition] = {}
        self._records = 0

    def open(self, planned: PlannedRepartition, author: str) -> Repartition:
        repartition_id = len(self.kept) + 1
        opened = Repartition(
            **vars(planned),
            repartition_id=repartition_id,
            author=author,
            state=RepartitionState.RUNNING,
            started_s=0.0,
        )
        self.kept[repartition_id] = opened
        return opened

    def unfinished(self) -> tuple[Repartition, ...]:
        return tuple(one for one in self.kept.values() if one.state in UNFINISHED)

    def begin_step(self, repartition_id: int, step: Next) -> int:
        with self.crashes.call("begin_step"):
            self._records += 1
            repartition = self.kept[repartition_id]
            new = RepartitionStepRecord(
                step.step,
                step.direction,
                RepartitionStepOutcome.RUNNING,
                0.0,
                record_id=self._records,
            )
            self.kept[repartition_id] = replace(repartition, steps=(*repartition.steps, new))
            return self._records

    def end_step(self, record_id: int, outcome: RepartitionStepOutcome, words: str) -> None:
        with self.crashes.call("end_step"):
            for repartition in self.kept.values():
                records = tuple(
                    replace(one, outcome=outcome, words=words, ended_s=1.0)
                    if one.record_id == record_id
                    else one
                    for one in repartition.steps
                )
                self.kept[repartition.repartition_id] = replace(repartition, steps=records)

    def keep_texts(self, repartition_id: int, slurm_conf: str, gres_conf: str) -> Repartition:
        with self.crashes.call("keep_texts"):
            repartition = self.kept[repartition_id]
            if repartition.gres_conf is None:
                repartition = replace(repartition, slurm_conf=slurm_conf, gres_conf=gres_conf)
            self.kept[repartition_id] = repartition
            return repartition

    def finish(self, repartition_id: int, state: RepartitionState, error: str) -> None:
        with self.crashes.call("finish"):
            ended_s = None if state in UNFINISHED else 1.0
            repartition = self.kept[repartition_id]
            self.kept[repartition_id] = replace(
                repartition, state=state, error=error, ended_s=ended_s
            )

    def find(self, repartition_id: int) -> Repartition:
        return self.kept[repartition_id]

    def save_inventory(self, node: str, inventory: Mapping[str, Any]) -> None:
        must(node == NODE)
        must(bool(inventory["gpus"]))


class RepartitionWorld:
    """The node and slurmctld; each call asserts that it is legal in the state in which it comes.

    Attributes:
        layout: how the GPU is cut.
        running: the device of each running job.
        leaves_after: how often a replica must be told to leave before it does.
        ends_in_s: seconds for which its processes live on after Slurm regards its device as free.
        known, registered: the devices that slurmctld and slurmd have.
    """

    intruder = 13

    def __init__(self, crashes: Crashes | None = None, *, moving: bool = True) -> None:
        self.crashes = crashes or Crashes()
        self.layout = set(BEFORE)
        self.slurm_conf, self.gres_conf = _texts(self.found(self.layout))
        self.known = self.registered = self._positions()
        self.running = {STAYING_JOB: self.found({BEFORE[1]})[0]}
        if moving:
            self.running[MOVING_JOB] = self.found({BEFORE[5]})[0]
        self.leaves_after = 2
        self.ends_in_s = 0.0
        self.ending: dict[int, tuple[Device, float]] = {}
        self.reserved: dict[str, float] = {}
        self.drained = ""
        self.time_s = 0.0
        self.silent_until_s = 0.0
        self.unreachable_s = (0.0, 0.0)
        self.foreign_layout: set[Placement] | None = None
        self.told: tuple[str, str] | None = None

    def lapse(self) -> None:
        """End the reservation, and start a job on a device that is free and exists.

        A job that was given a device which no longer exists would end immediately.
        """
        self.reserved.clear()
        free = [
            one
            for one, there in zip(self.known, self.registered, strict=True)
            if one is not None and one == there and one not in self.running.values()
            if one.files in self._files()
        ]
        if free and not self.drained:
            self.running[self.intruder] = free[-1]

    # What a test looks at

    def is_before(self) -> bool:
        return self._is(set(BEFORE))

    def is_after(self) -> bool:
        return self._is(set(AFTER))

    def _is(self, layout: set[Placement]) -> bool:
        wanted = sorted(one.gres_type for one in self.found(layout))
        told = [sorted(d.gres_type for d in known if d) for known in (self.known, self.registered)]
        return self.layout == layout and told == [wanted, wanted]

    # What the executor does

    async def reserve(self, name: str, node: str, minutes: int) -> None:
        with self.crashes.call("reserve"):
            must(node == NODE)
            self.reserved = {name: self.time_s + 60 * minutes}

    async def release(self, name: str) -> None:
        with self.crashes.call("release"):
            must(self.known == self.registered, "jobs would get devices that are not there")
            must({one.files for one in self.known if one} == self._files())
            self.reserved.pop(name, None)

    async def drain(self, node: str, reason: str) -> None:
        with self.crashes.call("drain"):
            must(node == NODE)
            self.drained = reason

    async def undrain(self, node: str, reasons: tuple[str, ...]) -> None:
        with self.crashes.call("undrain"):
            must(bool(self.reserved), "jobs would start")
            must(node == NODE)
            if self.drained.startswith(reasons):
                self.drained = ""

    async def node(self, name: str) -> NodeView | None:
        with self.crashes.call("node"):
            gpus: dict[str, int] = {}
            for one in filter(None, self.known):
                gpus[one.gres_type] = gpus.get(one.gres_type, 0) + 1
            states = {"IDLE", "MAINTENANCE", *(["DRAIN"] if self.drained else [])}
            states |= {"INVALID_REG"} if self.known != self.registered else set()
            held = frozenset(self._index(device) for device in self.running.values())
            allotted = dict(Counter(one.gres_type for one in self.running.values()))
            # Just after its restart slurmctld does not know the indices that jobs hold.
            held = held if self.silent_until_s <= self.time_s else frozenset()
            return a_node(
                name, states=frozenset(states), gpus=gpus, gpus_allotted=allotted, gpus_held=held
            )

    def _index(self, device: Device) -> int:
        return next(index for index, one in enumerate(self.known) if one == device)

    async def holders(self, node: str, indices: Collection[int]) -> frozenset[RunOfJob]:
        first_s, last_s = self.unreachable_s
        if first_s <= self.time_s < last_s:
            raise UnreachableError("SW-SLURM-DOWN", "no answer")
        with self.crashes.call("holders"):
            must(node == NODE)
            holding = {job: self._index(device) for job, device in self.running.items()}
            ending = {job for job, (_, until_s) in self.ending.items() if self.time_s < until_s}
            there = {job for job, index in holding.items() if index in indices}
            return frozenset((job, START_S) for job in ending | there)

    async def leave(self, runs: frozenset[RunOfJob], why: str) -> None:
        with self.crashes.call("leave"):
            must("repartition" in why)
            must(all(job != STAYING_JOB for job, _ in runs))
            self.leaves_after -= 1
            if self.leaves_after <= 0 and MOVING_JOB in self.running:
                left = self.running.pop(MOVING_JOB)
                self.ending = {MOVING_JOB: (left, self.time_s + self.ends_in_s)}

    async def end_loans(self, runs: frozenset[RunOfJob], names: Collection[str]) -> None:
        with self.crashes.call("end_loans"):
            must(bool(self.reserved), "another job could take the instance")
            if (
                MOVING_JOB in self.running
                and (MOVING_JOB, START_S) in runs
                and f"job {MOVING_JOB}" in names
            ):
                left = self.running.pop(MOVING_JOB)
                self.ending = {MOVING_JOB: (left, self.time_s + self.ends_in_s)}

    async def inventory(self, node: str, reservation: str) -> Inventory:
        with self.crashes.call("inventory"):
            self._require_srun(node, reservation)
            return inventory_of(self.foreign_layout or self.layout)

    async def cut(self, repartition: Repartition, direction: Direction) -> Gpu:
        with self.crashes.call("cut"):
            self._require_srun(repartition.node, repartition.reservation)
            before, after = map(set, repartition.layouts(direction))
            must(before & after <= self.layout <= before | after)
            going = {one.files for one in self.found(self.layout - after)}
            if self.intruder in self.running and self.running[self.intruder].files in going:
                raise OutsideError("SW-MIG-IN-USE", "a process holds it")
            ending = [one.files for one, until_s in self.ending.values() if self.time_s < until_s]
            must(going.isdisjoint(ending), "a process that is ending holds it")
            must(going.isdisjoint(one.files for one in self.running.values()))
            self.layout = set(after)
            return inventory_of(self.layout).gpus[0]

    def devices(self, node: str, inventory: Inventory) -> tuple[Device, ...]:
        must(node == NODE)
        return slurm_gres.devices(inventory, _TYPES)

    def texts(self) -> tuple[str, str]:
        return self.slurm_conf, self.gres_conf

    def write(self, node: str, vendor: str, found: Sequence[Device | None]) -> None:
        padded = node_lines.padded(found, vendor, "/dev")
        lines = slurm_gres.gres_conf(node, padded)
        with self.crashes.call("write gres.conf"):
            must({one.files for one in found if one} == self._files())
            self.gres_conf = node_lines.with_node_lines(self.gres_conf, node, lines)
        with self.crashes.call("write slurm.conf"):
            gres = slurm_gres.node_gres(padded)
            self.slurm_conf = node_lines.with_node_gres(self.slurm_conf, node, gres)

    def put_back(self, repartition: Repartition) -> None:
        if repartition.slurm_conf is None or repartition.gres_conf is None:
            return
        with self.crashes.call("put_back"):
            self.told = self.told or self.texts()
            self.slurm_conf = node_lines.as_kept(self.slurm_conf, repartition.slurm_conf, NODE)
            self.gres_conf = node_lines.as_kept(self.gres_conf, repartition.gres_conf, NODE)

    def put_told(self, repartition: Repartition) -> None:
        if self.told is None:
            return
        with self.crashes.call("put_told"):
            slurm_conf, gres_conf = self.told
            self.slurm_conf = node_lines.as_kept(self.slurm_conf, slurm_conf, NODE)
            self.gres_conf = node_lines.as_kept(self.gres_conf, gres_conf, NODE)
        self.told = None

    def forget_told(self, repartition: Repartition) -> None:
        self.told = None

    async def restart_node(self, node: str, reservation: str) -> None:
        with self.crashes.call("restart_node"):
            self._require_srun(node, reservation)
            registered = self._positions()
            must({one.files for one in registered if one} <= self._files(), "slurmd would exit")
            self.registered = registered
            self._compare()

    async def restart_controller(self, node: str) -> None:
        with self.crashes.call("restart_controller"):
            must(node == NODE)
            indices = {job: self._index(device) for job, device in self.running.items()}
            self.known = self._positions()
            self.silent_until_s = self.time_s + 4
            must({job: self._index(device) for job, device in self.running.items()} == indices)
            self._compare()

    def _compare(self) -> None:
        if self.known != self.registered and not self.drained:
            self.drained = "gres/gpu count reported lower than configured (4 < 7)"

    async def wait(self, seconds: float) -> None:
        self.time_s += seconds

    def now_s(self) -> float:
        return self.time_s

    # Inside

    def _require_srun(self, node: str, reservation: str) -> None:
        must(node == NODE)
        must(reservation in self.reserved)
        must(not self.drained, "no job starts on a drained node")
        must(self.known == self.registered, "nor on an invalid one")

    def found(self, layout: set[Placement]) -> tuple[Device, ...]:
        return slurm_gres.devices(inventory_of(layout), _TYPES)

    def _files(self) -> set[tuple[str, ...]]:
        return {one.files for one in self.found(self.layout)}

    def _positions(self) -> tuple[Device | None, ...]:
        return node_lines.node_positions(self.slurm_conf, self.gres_conf, NODE)


def planned() -> PlannedRepartition:
    return PlannedRepartition(
        NODE, GPU, BEFORE, AFTER, ("vision/bert",), "3g more: 1 waits", 9000, 420
    )


async def run(world: RepartitionWorld, journal: MemoryJournal, *, taken_up: bool) -> Repartition:
    """Carry out the newest repartition as one process does."""
    work = RepartitionActions(world, journal, move_s=20, is_ours=lambda: True)
    executor = Executor(work, journal, lambda repartition, record: None)
    (*_, newest) = journal.kept.values()
    with no_threads():
        return await executor.carry_out(newest, taken_up=taken_up)


def inventory_of(layout: Collection[Placement]) -> Inventory:
    instances = tuple(_instance(one) for one in sorted(layout, key=lambda one: one.start))
    health = Health(None, None, None, None, None)
    words = {"index": 0, "name": "NVIDIA A100-SXM4-80GB", "uuid": GPU, "pci_bus_id": "0"}
    numbers = {"pci_device_id": 0, "minor": 0, "memory_mib": 81920, "memory_used_mib": 0}
    unknown = {"power_mw": None, "power_limit_mw": None, "temperature_c": None}
    gpu = Gpu(
        **words,
        **numbers,
        **unknown,
        board=A100,
        mig=True,
        mig_pending=True,
        health=health,
        instances=instances,
        holders=(),
    )
    return Inventory("550", (gpu,), ())


def _instance(placement: Placement) -> Instance:
    minor = 10 + 20 * placement.size + 2 * placement.start
    compute = ComputeInstance(0, f"MIG-{minor}", minor + 1, ())
    return Instance(placement.start, placement, None, minor, (compute,))


def _texts(found: Sequence[Device]) -> tuple[str, str]:
    lines = "\n".join(slurm_gres.gres_conf(NODE, found))
    slurm_conf = f"ClusterName=c\nNodeName={NODE} CPUs=4 Gres={slurm_gres.node_gres(found)}\n"
    assert parse_gpu_requests(slurm_gres.node_gres(found))
    return slurm_conf, f"# ours\n{lines}\n"
