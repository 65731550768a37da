"""What a world does once nothing fails any more, so that each repair has something to repair.

All of it happens at moments that faults alone meet seldom: an owner cancels a service just as it
scales down, one write to slurmdbd fails just as a lender takes its quota back.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from stand_ins.slurm_database import COSTS

from fault_world.faults import Fault, seeded
from fault_world.site_plan import Submitted
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.interface import Tasks
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.runtime.log import LoggedEvent
from slicewise.simulation.rules.services.request_queue import ServiceRequests
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate

if TYPE_CHECKING:
    from fault_world.launcher import AppliedService
    from fault_world.site_plan import SitePlan
    from fault_world.world import World

AWAY_S = 60.0
"""Seconds for which the launcher is not there while somebody releases a slot."""
_FILLS_S = 10.0
"""Seconds in which jobs start that take the room of a slot."""
_SCALES_S = 60.0
"""Seconds for which an owner waits for a service to scale down, to cancel it then."""
_SHORT_S = 0.4
"""Seconds of a run that ends in the second in which it starts."""
_ROUNDS = 2
"""How often lenders take their quota back."""
_LOADS_S = 50.0
"""Seconds for which a service is under load before lenders take their quota back."""
_CROWD = 4
"""Requests at a time for each replica that it may have, twice as many as it works on."""
_BACK_S = 20.0
"""Seconds beside the grace for which lenders want their quota."""
_AMPLE = MillisliceSeconds(10**13)
_AGAIN_S = 3.0
"""Seconds that the turn of a loop may take beside its pause."""


@dataclass(frozen=True)
class ExercisePlan:
    """What of it this world does.

    Attributes:
        undecided: a job that is submitted while the daemon does not answer.
        ends_late: whether it ends at once, and accounting shows that very late.
        budget: a tenant that gets a budget, far more than it can use.
        bursts: whether services get requests.
        loses_slot: whether an owner cancels one slot of a service.
        releases_slot: whether somebody releases a slot that nobody wants, where it finds no room.
        fails_write: how one change of limits fails while a lender takes its quota back.
        silences: who does not answer while a recall goes on: slurmctld, or only every other answer
            about nodes is missing: some looks are half ones, and limits are still compiled.
        silent_from: whether that begins with the recall, or shortly before the end of its grace.
        silent_before_s: how long before.
        cancels: whether services are cancelled as they scale down.
        is_before: whether that is right when the launcher asks for fewer slots, not ``later_s``
            after the daemon has requeued some.
    """

    undecided: Submitted | None
    ends_late: bool
    budget: str | None
    bursts: bool
    loses_slot: bool
    releases_slot: bool
    fails_write: Fault | None
    silences: str | None
    silent_from: str
    silent_before_s: float
    cancels: bool
    is_before: bool
    later_s: float


def exercises(plan: "SitePlan", undecided: Sequence[Submitted]) -> ExercisePlan:
    random = seeded("exercises", plan.seed)
    return ExercisePlan(
        undecided=random.choice(undecided) if undecided else None,
        ends_late=random.random() < 0.05,
        budget=random.choice((None, *plan.policy)),
        bursts=random.random() < 0.5,
        loses_slot=random.random() < 0.4,
        releases_slot=random.random() < 0.3,
        fails_write=random.choice((None, Fault.DOWN, Fault.LOST)),
        silences=random.choice((None, "slurmctld", "nodes", "nodes")),
        silent_before_s=random.uniform(0.0, 5.0),
        cancels=random.random() < 0.6,
        is_before=random.random() < 0.5,
        later_s=random.choice((0.0, random.uniform(0.0, 5.0))),
        silent_from=random.choice(("recall", "grace")),
    )


class Exercises:
    """Does them.

    Attributes:
        away_until_s: until when the launcher is not started again.
        cancelled: arrays that their owners have cancelled.
        by_hand: tasks (array, index) that somebody released: their limit is their last run's.
        broken: what did not happen in time.
        disturbed_s: when something last failed all the same.
    """

    def __init__(self, world: "World", plan: ExercisePlan) -> None:
        self._world, self._plan = world, plan
        self._random: Random = seeded("bursts", world.plan.seed)
        self._is_probed = self._is_armed = False
        self._recalled_s = inf
        self.away_until_s = 0.0
        self.cancelled: set[int] = set()
        self.by_hand: set[tuple[int, int]] = set()
        self.broken: list[str] = []
        self.disturbed_s = -inf
        world.trace.heard.append(self._hear)
        world.site.requeued = self._requeued
        world.site.asked_for = self.asked

    def begin(self) -> None:
        """Right when nothing fails any more, and the clock is right again."""
        if self._plan.undecided is not None:
            self._submit(self._plan.undecided)
        self._set_budget(self._plan.budget)
        self.burst()

    def _set_budget(self, tenant: str | None) -> None:
        """A budget that is set again within its period is amended, which a world's ledger can't."""
        if tenant is not None and tenant not in self._world.ledger.rollovers():
            self._world.trace.note("world", f"{tenant} gets a budget")
            budget = Budget(Period.NONE, _AMPLE)
            self._world.ledger.change(TenantUpdate(tenant, budget=budget))

    def _submit(self, job: Submitted) -> None:
        if self._plan.ends_late:
            # A look that has just begun shows it running.
            self._world.site.looked_at = lambda: self._submit_short(job)
        else:
            self._world.submit(job, unanswered=True)

    def _submit_short(self, job: Submitted) -> None:
        self._world.site.looked_at = lambda: None
        self._world.submit(replace(job, run_s=_SHORT_S), unanswered=True)
        self._world.site.late_ends.add(self._world.jobs[-1])

    def burst(self) -> None:
        """Let requests come to each service for a while."""
        for one in self._world.services:
            if self._plan.bursts and one.array not in self.cancelled:
                now_s = self._world.clock.now_s
                gap_s = self._random.choice((0.3, 1.0))
                more = [now_s + 1 + i * gap_s for i in range(self._random.choice((5, 20, 40)))]
                _ask(one.gateway.requests, more, one.service.engine.service_s[0])

    def lose_slot(self) -> bool:
        """An owner cancels a slot that runs beside others; whether one did."""
        if not self._plan.loses_slot:
            return False
        for one in self._world.services:
            view = one.look(self._world.site)
            slots = view.slots if view is not None and one.array not in self.cancelled else ()
            running = [slot.index for slot in slots if slot.state == "running"]
            if running and sum(slot.state in {"held", "running"} for slot in slots) > 1:
                index = self._random.choice(running)
                self._world.trace.note("world", f"scancel {one.array}_{index}")
                self._world.site.model.cancel(Tasks(one.array, frozenset({index})))
                return True
        return False

    async def take_back(self, guest: SimulatedService) -> None:
        """A service runs on what others lend; their own jobs come, for all of it, and go."""
        world, grace_s = self._world, self._world.plan.grace_s
        one = world.apply(guest)
        now_s, service_s = world.clock.now_s, guest.engine.service_s[0]
        gap_s = service_s / (_CROWD * guest.spec.max_replicas)
        lasts_s = _ROUNDS * (_LOADS_S + grace_s + _BACK_S)
        more = [now_s + _FILLS_S + i * gap_s for i in range(int(lasts_s / gap_s))]
        _ask(one.gateway.requests, more, service_s)
        for _ in range(_ROUNDS):
            await asyncio.sleep(_LOADS_S)
            before = len(world.jobs)
            self.begin_probe()
            self._come_back(guest)
            await asyncio.sleep(grace_s + _BACK_S)
            self.end_probe()
            for job_id in world.jobs[before:]:
                world.site.model.cancel(job_id)

    def _come_back(self, guest: SimulatedService) -> None:
        """As many jobs of all other tenants as their quota pays, first of the service's profile."""
        model = self._world.site.model
        there = sum((Counter(node.gpus) for node in model.nodes), Counter[str]())
        for name, tenant in self._world.plan.policy.items():
            left = tenant.quota.nominal_millislices
            for kind in sorted(there, key=lambda one: (one != guest.spec.profile, one)):
                count = min(there[kind], left // COSTS[kind]) if name != guest.spec.tenant else 0
                there[kind] -= count
                left -= count * COSTS[kind]
                for _ in range(count):
                    self._world.submit(Submitted(0.0, name, {kind: 1}, 2 * _BACK_S, 120))

    def begin_probe(self) -> None:
        """While others have borrowed all that they get."""
        self._is_probed = True
        if self._plan.fails_write is not None:
            self._is_armed = True
            self._world.faults.once["slurmdbd"] = self._plan.fails_write

    def end_probe(self) -> None:
        self._is_probed = self._is_armed = False
        self._world.faults.once.clear()

    async def release_slot(self) -> None:
        """Somebody releases a slot while jobs of its tenant take all the room that it could have.

        The launcher is away: it would have the slot held with its next answer.
        """
        world = self._world
        for one in world.services if self._plan.releases_slot else ():
            view = one.look(world.site)
            held = [slot.index for slot in view.slots if slot.state == "held"] if view else []
            if held and one.array not in self.cancelled:
                before = len(world.jobs)
                self._fill(one)
                await asyncio.sleep(_FILLS_S)
                self.away_until_s = world.clock.passed_s + AWAY_S
                world.kill_launcher()
                world.trace.note("world", f"scontrol release {one.array}_{held[0]}")
                self.by_hand.add((one.array, held[0]))
                world.site.model.release(Tasks(one.array, frozenset({held[0]})))
                await asyncio.sleep(AWAY_S)
                for job_id in world.jobs[before:]:
                    world.site.model.cancel(job_id)
                return

    def _fill(self, one: "AppliedService") -> None:
        """As many jobs of its tenant as there are instances."""
        spec = one.service.spec
        total = sum(node.gpus.get(spec.profile or "", 0) for node in self._world.site.model.nodes)
        for _ in range(total):
            job = Submitted(0.0, spec.tenant, {spec.profile or "": 1}, 2 * AWAY_S, 240)
            self._world.submit(job)

    def write_failed(self) -> None:
        """The one write has failed: the daemon asks slurmdbd again within two turns.

        A loop whose turn failed rests twice as long as usual.
        """
        if not self._is_armed:
            return
        self._is_armed = False
        world, failed_s = self._world, self._world.clock.passed_s
        self.disturbed_s = failed_s
        within_s = 2 * world.plan.moving_s + _AGAIN_S
        life = world.lives

        def look() -> None:
            silent_s = self.disturbed_s > failed_s
            if world.lives == life and not silent_s and world.site.asked_s <= failed_s:
                self.broken.append(f"limits that failed were not tried again in {within_s} s")

        asyncio.get_running_loop().call_later(within_s, look)

    def _hear(self, said: LoggedEvent) -> None:
        world = self._world
        if said.name == "reclaimed" and world.daemon and not world.daemon.has_looked:
            self.broken.append(f"decided on half a look: {said}")
        if said.name == "recalled" and self._is_probed and self._plan.silences is not None:
            grace_s, self._is_probed = world.plan.grace_s, False
            if self._plan.silent_from == "recall":
                since_s = until_s = 0.0
            else:
                since_s, until_s = max(0.0, grace_s - self._plan.silent_before_s), grace_s
            loop = asyncio.get_running_loop()
            loop.call_later(since_s, self._silence)
            loop.call_later(until_s + self._random.uniform(5, 15), self._let_answer)

    def _silence(self) -> None:
        self.disturbed_s = self._world.clock.passed_s
        self._world.trace.note("world", f"{self._plan.silences} answers nobody")
        self._world.faults.silent.add(self._plan.silences or "")

    def _let_answer(self) -> None:
        self.disturbed_s = self._world.clock.passed_s
        self._world.trace.note("world", f"{self._plan.silences} answers again")
        self._world.faults.silent.clear()

    def asked(self, array: int, slots: int) -> None:
        """The launcher asks for so many slots."""
        if not self._plan.is_before or not self._cancels(array):
            return
        jobs = self._world.site.model.array(array)
        if sum(job.state is JobState.RUNNING for job in jobs) > slots:
            self.cancel(array)

    def _requeued(self, array: int) -> None:
        if self._cancels(array) and not self._plan.is_before:
            loop = asyncio.get_running_loop()
            loop.call_later(self._plan.later_s, self.cancel, array)

    def _cancels(self, array: int) -> bool:
        """Whether it is cancelled now; not while a requeue from before may still be made."""
        world = self._world
        is_calm = world.clock.passed_s > world.plan.ends_s + world.plan.latest_s
        return is_calm and self._plan.cancels and array not in self.cancelled

    def cancel(self, array: int) -> None:
        """Its owner cancels a service."""
        if array not in self.cancelled:
            self.cancelled.add(array)
            self._world.trace.note("world", f"scancel {array}")
            self._world.site.model.cancel(array)

    async def scaled_down(self) -> None:
        """Wait until services have scaled down, and are cancelled by that."""
        until_s = self._world.clock.passed_s + _SCALES_S
        while self._plan.cancels and self._plan.bursts and self._world.clock.passed_s < until_s:
            if not any(map(self._may_scale_down, self._world.services)):
                return
            await asyncio.sleep(1.0)

    def _may_scale_down(self, one: "AppliedService") -> bool:
        jobs = self._world.site.model.array(one.array)
        running = sum(job.state is JobState.RUNNING for job in jobs)
        return one.array not in self.cancelled and running > one.service.spec.min_replicas


def _ask(requests: ServiceRequests, arrivals_s: Sequence[float], service_s: float) -> None:
    """Let more requests come; they are known to nobody before."""
    known = requests.arrivals[:-1]
    later = sorted((*known[requests.arrived :], *arrivals_s))
    requests.arrivals[:] = [*known[: requests.arrived], *later, inf]
    requests.waits += [inf] * len(arrivals_s)
    requests.answers += [inf] * len(arrivals_s)
    requests._service += [service_s] * len(arrivals_s)
