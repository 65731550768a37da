"""Services of a world: their requests, and the launcher, which may die and start anew."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_slurm import PORT
from stand_ins.slurm_database import COSTS

from fault_world.daemon import WorldDaemon
from fault_world.faults import CrashError, Faults, down
from fault_world.link import Link
from fault_world.slurm import Site
from fault_world.virtual_time import WorldClock
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.jobs import JobState, StepView
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.launcher.process.saved_state import taken_over
from slicewise.launcher.rules.turn.clock_step import STEP_S, after_step
from slicewise.launcher.rules.turn.state import DesiredSlots, ServiceState, after_silence
from slicewise.simulation.rules.services.gateway_place import ServiceGateway
from slicewise.simulation.rules.services.launcher import ServiceLauncher
from slicewise.simulation.rules.services.service import SimulatedService, array_of
from slicewise.slurm_plugin.rules.services.state import Observation, services

EVERY_S = 2.0
"""Seconds between two turns of the launcher."""
_DEADLINE_S = 15.0


@dataclass
class AppliedService:
    """A service, its array and its place at the gateway, which outlives any launcher.

    Attributes:
        saved: what a launcher has saved last.
    """

    service: SimulatedService
    array: int
    gateway: ServiceGateway
    saved: ServiceState | None = None

    def look(self, site: Site) -> ServiceView | None:
        """The service as it really is now; None once its array is gone."""
        model, array = site.model, self.array
        records = tuple(job for job in model.jobs if job.array_job_id == array)
        steps = tuple(
            StepView(job.job_id, "0", job.nodes, (PORT + (job.task_index or 0),))
            for job in records
            if job.state is JobState.RUNNING
        )
        directives = {array: self.service.spec.values()}
        found = services(Observation(model.now_s, records, model.nodes, steps, directives), COSTS)
        return found[0] if found else None

    def pass_until(self, site: Site) -> None:
        """Let requests come, and replicas begin and end, as Slurm has them."""
        self.gateway.requests.pass_until(site.clock.now_s)
        if (view := self.look(site)) is not None:
            self.gateway.follow(view)

    def published(self, view: ServiceView) -> ServiceView:
        """The daemon's view, with what its replicas have published of themselves."""
        return view.model_copy(update={"slots": tuple(map(self._published, view.slots))})

    def _published(self, slot: SlotView) -> SlotView:
        run = self.gateway.runs.get(slot.index)
        if run is None or (run.job_id, run.start_s) != (slot.job_id, slot.start_s):
            return slot
        where = run.endpoint
        return slot.model_copy(update={"address": where.address, "certificate": where.certificate})


def applied(service: SimulatedService, number: int, site: Site) -> AppliedService:
    """Submit the service's array, as ``slicewise service apply`` does."""
    script = "\n".join(("#!/bin/bash", *service.spec.directives(), "srun server", ""))
    array = site.submit(array_of(service, number), script)
    return AppliedService(service, array, ServiceGateway(service))


class WorldLauncher:
    """One life of the launcher."""

    def __init__(
        self,
        those: list[AppliedService],
        site: Site,
        link: Link,
        faults: Faults,
        daemon: Callable[[], WorldDaemon | None],
    ) -> None:
        self._those, self._site, self._link, self._faults = those, site, link, faults
        self._daemon = daemon
        self._turns: dict[int, ServiceLauncher] = {}
        self._ahead_s = site.clock.ahead_s

    @property
    def link(self) -> Link:
        return self._link

    def desired(self, array: int) -> DesiredSlots | None:
        """The slots that it last asked for, and got an answer."""
        known = self._turns.get(array)
        generation = known.state.generations.get(array) if known is not None else None
        return generation.desired if generation is not None else None

    async def run(self) -> None:
        """Take turns until it dies: raises CrashError."""
        while True:
            await self._turn()
            await asyncio.sleep(EVERY_S)

    async def _turn(self) -> None:
        self._follow_clock()
        for one in self._those:
            one.pass_until(self._site)
        try:
            views = await self._link.ask("daemon", "view", self._views)
        except SlicewiseError:
            return
        for one in self._those:
            if one.array in views:
                view, number = views[one.array]
                await self._serve(one, one.published(view), number)

    def _follow_clock(self) -> None:
        """As ``slicewise.launcher.process.loop`` does."""
        step_s, self._ahead_s = self._clock.ahead_s - self._ahead_s, self._clock.ahead_s
        if abs(step_s) > STEP_S:
            for launcher in self._turns.values():
                moved = after_step({"": launcher.state}, step_s)
                launcher.state, launcher.rests = moved[""], None

    def _views(self) -> Mapping[int, tuple[ServiceView, int]]:
        """Each service, and the number of its last request that the daemon has taken."""
        daemon = self._daemon()
        if daemon is None or not daemon.answers or not daemon.state.view.complete:
            raise down("daemon")
        daemon.state.hear()
        versions = daemon.state.desired_slots_versions
        return {
            view.array_job_id: (view, versions[view.array_job_id])
            for view in daemon.state.view.services
        }

    async def _serve(self, one: AppliedService, view: ServiceView, number: int) -> None:
        launcher = self._turns.get(one.array)
        if launcher is None:
            launcher = self._turns[one.array] = ServiceLauncher(one.service, EVERY_S)
            if one.saved is not None:
                now_s = self._site.clock.now_s + self._ahead_s
                launcher.state = taken_over({"": one.saved}, now_s)[""]
        one.pass_until(self._site)
        plan = launcher.decide(view, one.gateway, self._site.clock.now_s + self._ahead_s)
        if plan is None:
            return
        one.gateway.apply(plan.route)
        desired = plan.desired_by_array.get(one.array)
        if desired is not None:
            await self._ask(one, launcher, desired, number)
        one.saved = launcher.state

    @property
    def _clock(self) -> WorldClock:
        return self._site.clock

    async def _ask(
        self, one: AppliedService, launcher: ServiceLauncher, desired: DesiredSlots, after: int
    ) -> None:
        words = f"desired slots of {one.array}: {sorted(desired.run)}"
        try:
            asking = await self._link.ask(
                "daemon", words, lambda: self._asking(one.array, desired, after), changes=True
            )
            answer = await asking
        except SlicewiseError as error:
            if not isinstance(error, InvalidInputError):
                launcher.state = after_silence(launcher.state, one.array, desired)
        else:
            launcher.hear(one.array, desired, answer)

    def _asking(self, array: int, desired: DesiredSlots, after: int) -> "asyncio.Future[object]":
        """The daemon's work on a request; it goes on if nobody waits for its end."""
        daemon = self._daemon()
        if daemon is None or not daemon.answers:
            raise down("daemon")
        self._site.asked_for(array, len(desired.run))
        work = daemon.begin(
            daemon.state.set_desired_slots(
                *(array, desired.run, desired.note, desired.urgency),
                avoid=desired.avoid,
                after=after,
            )
        )
        answer = asyncio.ensure_future(_answered(work))
        for one in (work, answer):
            one.add_done_callback(_heard)
        return answer


def _heard(done: "asyncio.Future[object]") -> None:
    """An error that nobody waits for any more is none."""
    if not done.cancelled():
        done.exception()


async def _answered(work: "asyncio.Task[object]") -> object:
    await asyncio.wait({work}, timeout=_DEADLINE_S)
    if not work.done() or work.cancelled() or isinstance(work.exception(), CrashError):
        raise down("daemon")
    return work.result()
