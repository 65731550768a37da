"""How long what is wrong may last once nothing fails any more, looked at while the world lives.

A bound is the sum of what may stand between the end of the last fault and a repair: the rest of a
loop that has failed, a few turns of the quick loops, some intervals between looks at Slurm, and
where limits or a recall are concerned a regular compilation or the grace. Late decisions, charges,
releases and periods follow from a look within three turns; the view and the guard need one or two.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from model_slurm import PARTITION
from stand_ins.slurm_database import COSTS

from fault_world.site_plan import most_of
from slicewise.cluster.language.jobs import JobState, JobTag
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.runtime.log import LoggedEvent
from slicewise.slurm_plugin.rules.accounting.types import RunKey
from slicewise.slurm_plugin.rules.common.costs import run_cost

if TYPE_CHECKING:
    from fault_world.world import World

BACKOFF_S = 15.0
"""Seconds for which a loop may still rest after its last failure (``periodic.BACKOFF_MAX_S``)."""
_SOON_S = 10.0
"""Seconds for a few turns of quick loops."""
LATE_S = 90.0
"""Seconds within which wrong limits are found and put right."""
_COMPILES_S = 15.0
"""Seconds between compilations while nothing changes (``due.REGULAR_S``)."""

_LOOKS_S = 5.0
"""Seconds between turns of leases (``lease_loop._LOOK_S``)."""
_SEEN_S = 10.0
"""Seconds after which the last look shows a start, while nothing fails."""
_OFTEN = 3
"""So often a call that changes nothing may be made; loops decide on looks, which are some seconds
old."""
_QUIET_S = 60.0
"""Seconds after the last fault from which on no turn of a loop fails, and no lease runs out."""

_NUDGE = re.compile(r"update \S+ qos=\S+")

Late = tuple[str, float]
"""What is wrong, and the seconds for which it may be."""


class Bounds:
    """Since when each thing has been wrong, and which calls were in vain."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._since_s: dict[str, float] = {}
        self._calm_s = 0.0
        self._vain: Counter[str] = Counter()
        self._may_nudge = False
        self._wrong: list[str] = []
        self._runs = 0
        self._wanted: Mapping[int, frozenset[int]] = {}
        self._refused: Counter[tuple[int, object, object]] = Counter()
        world.site.calls = self._called
        world.site.released = self._released
        world.trace.heard.append(self._hear)

    def _is_quiet(self) -> bool:
        """Whether nothing has failed for a while."""
        world = self._world
        last_s = max(self._calm_s, world.exercises.disturbed_s)
        return _is_calm(world) and world.clock.passed_s > last_s + _QUIET_S

    def _called(self, words: str, has_changed: bool) -> None:
        # Once limits have changed, slurmctld is told to schedule by the QOS that a job has.
        if has_changed and words.startswith("sacctmgr"):
            self._may_nudge = True
        if not has_changed and self._may_nudge and _NUDGE.fullmatch(words):
            self._may_nudge = False
            return
        # An array that still ends is cancelled at each look, since that may fail.
        if not has_changed and not words.startswith("cancel") and self._is_quiet():
            self._vain[words] += 1

    def _hear(self, said: LoggedEvent) -> None:
        is_failure = said.name.endswith(("_failed", "_waits")) and "error" in said.fields
        if is_failure and self._is_quiet():
            self._wrong.append(f"nothing fails, but {said}")
        if said.name == "charge_refused":
            self._follow_refusal(said.fields["job_id"], said.fields["start_s"])

    def _follow_refusal(self, job_id: object, start_s: object) -> None:
        """Once accounting shows the end, each life of the daemon tells of a refusal once."""
        world = self._world
        for one in world.site.runs:
            run = (one.run.job_id, int(one.run.start_s or 0))
            if run == (job_id, start_s) and world.site.shows_end(one):
                self._refused[world.lives, job_id, start_s] += 1

    def _released(self, array: int) -> None:
        """No slot is let go that its tenant may not run, with all that it might ever borrow.

        What it has held for some seconds was seen by the look on which slots were let go.
        """
        world = self._world
        jobs = world.site.model.jobs
        account = next(job.account for job in jobs if array in {job.job_id, job.array_job_id})
        before_s = world.clock.now_s - _SEEN_S
        held = sum(
            run_cost(job.gpus, COSTS)
            for job in jobs
            if job.account == account
            and (
                job.start_s is not None and job.start_s < before_s
                if job.state is JobState.RUNNING
                else job.array_job_id == array and job.state is JobState.PENDING and not job.held
            )
        )
        most = most_of(world.ledger.policy(), account)
        if held > most and self._is_quiet():
            self._wrong.append(f"{account} may have {most}, and {array} is let go to {held}")

    def _ran_out(self) -> None:
        """No replica that is wanted ends because nobody extends its lease."""
        world, before, wanted = self._world, self._runs, self._wanted
        self._runs = len(world.site.runs)
        daemon = world.daemon
        self._wanted = dict(daemon.state.desired_slots) if daemon is not None else {}
        if not self._is_quiet():
            return
        for one in world.site.runs[before:]:
            desired = wanted.get(one.run.array_job_id or 0, ())
            if one.run.state == "TIMEOUT" and one.run.task in desired:
                where = f"{one.run.array_job_id}_{one.run.task}"
                self._wrong.append(f"slot {where} is wanted, and its lease ran out")

    def broken(self) -> list[str]:
        """What has been wrong for too long, or too often."""
        world, now_s = self._world, self._world.clock.passed_s
        is_calm = _is_calm(world)
        self._calm_s = self._calm_s if is_calm and _has_launcher(world) else now_s
        self._ran_out()
        late = dict(_late(world)) if is_calm else {}
        late |= dict(_leases(world)) if self._is_quiet() else {}
        self._since_s = {words: self._since_s.get(words, now_s) for words in late}
        vain = [words for words, count in self._vain.items() if count > _OFTEN]
        told = [key for key, count in self._refused.items() if count > 1]
        return [
            *self._wrong,
            *(f"made {self._vain[words]} times, and changes nothing: {words}" for words in vain),
            *(
                f"the refused charge of job {key[1]} is told {self._refused[key]} times"
                for key in told
            ),
            *(
                f"{words}, for more than {most_s} s"
                for words, most_s in late.items()
                if now_s - self._since_s[words] > most_s
            ),
        ]


def _is_calm(world: "World") -> bool:
    """Whether nothing fails any more, and no call is late that was made when something did."""
    if not world.is_calm or world.daemon is None or not world.daemon.answers:
        return False
    return world.clock.passed_s > world.plan.ends_s + world.plan.latest_s


def _has_launcher(world: "World") -> bool:
    return world.launcher is not None and world.launcher.link.is_alive


def _late(world: "World") -> Iterator[Late]:
    yield from _undecided(world)
    yield from _books(world)
    yield from _quota(world)
    for one in world.services:
        view = one.look(world.site)
        if view is not None:
            yield from _slots(world, view)


def _turns_s(world: "World", count: int) -> float:
    return BACKOFF_S + _SOON_S + count * world.plan.moving_s


def _undecided(world: "World") -> Iterator[Late]:
    """Jobs that got no answer are decided, and let go once they are."""
    refused = world.daemon.state.refusals
    for job in world.site.model.jobs:
        tag = JobTag.find(job.admin_comment)
        if tag is None or tag.service or job.state is not JobState.PENDING:
            continue
        if tag.is_undecided and job.job_id not in refused:
            yield f"job {job.job_id} is undecided", _turns_s(world, 3)
        elif job.held and not tag.is_undecided:
            yield f"job {job.job_id} is decided and held", _turns_s(world, 3)


def _books(world: "World") -> Iterator[Late]:
    """A run is reserved soon after its start."""
    open_ = {one.key for one in world.ledger.open_reservations()}
    cluster = world.plan.cluster.name
    for job in world.site.model.jobs:
        if job.state is JobState.RUNNING and job.start_s is not None:
            key = RunKey(cluster, job.job_id, job.start_s)
            if key not in open_:
                yield f"run {key.job_id} of {key.start_s} is not in the books", _turns_s(world, 3)
    for one in world.site.runs:
        if one.run.start_s is None or one.run.partition != PARTITION:
            continue
        key = RunKey(cluster, one.run.job_id, int(one.run.start_s))
        if key in open_ and world.site.shows_end(one):
            yield f"run {key.job_id} of {key.start_s} has ended and is open", _turns_s(world, 3)


def _quota(world: "World") -> Iterator[Late]:
    ledger = world.ledger
    if ledger.compiled_id != ledger.newest:
        yield f"change {ledger.newest} is not in force", _turns_s(world, 3) + _COMPILES_S
    for one in ledger.called:
        words = f"recall of {one.borrower} for {one.lender} of {one.called_s}"
        yield words, world.plan.grace_s + _turns_s(world, 3) + _COMPILES_S
    rolled = ledger.rollovers()
    for name, tenant in ledger.policy().items():
        if tenant.budget is not None and name not in rolled:
            yield f"the budget of {name} has not begun", _turns_s(world, 3)
    if not world.daemon.state.view.complete:
        yield "the view is not whole", _turns_s(world, 1)


def _leases(world: "World") -> Iterator[Late]:
    """A wanted replica gets another lease once half of it is over; here no wall stands before it.

    Only a budget may be one: no job is planned here, and nothing is reserved.
    """
    policy = world.ledger.policy()
    now_s = world.clock.now_s
    for one in world.services:
        view, spec = one.look(world.site), one.service.spec
        if view is None or policy[spec.tenant].budget is not None or not _has_launcher(world):
            continue
        wanted = world.daemon.state.desired_slots.get(one.array, frozenset())
        for slot in view.slots:
            run = world.site.record(slot.job_id or 0)
            if slot.index not in wanted or run is None or run.start_s is None:
                continue
            if run.start_s + run.limit_s - now_s < spec.lease_s / 2:
                where = f"{one.array}_{slot.index}"
                within_s = 2 * (_LOOKS_S + world.plan.moving_s)
                yield f"the lease of slot {where} is more than half over", within_s


def _slots(world: "World", view: ServiceView) -> Iterator[Late]:
    array = view.array_job_id
    wanted = world.daemon.state.desired_slots.get(array, frozenset())
    lives = any(slot.state in {"held", "released", "starting", "running"} for slot in view.slots)
    for slot in view.slots:
        where = f"slot {array}_{slot.index}"
        if slot.state == "gone" and slot.job_id is not None and lives:
            yield f"{where} is lost", 60.0 + _turns_s(world, 3)
        if slot.state == "released" and slot.index not in wanted:
            yield f"{where} is released, and nobody wants it", _turns_s(world, 2)
        is_told = _has_launcher(world)
        if slot.state == "running" and slot.index not in wanted and is_told:
            yield f"{where} runs, and nobody wants it", _turns_s(world, 2)
        if slot.state == "ending":
            yield f"{where} is ending", _turns_s(world, 2)
