"""What the daemon knows of Slurm, and the loop that follows it: guards and moves slots."""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Protocol

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import (
    InvalidInputError,
    Refusal,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.language.jobs import JobView, NodeView, as_known, folded_tasks
from slicewise.cluster.language.leader import ALONE, Leader
from slicewise.cluster.language.slurm.asked import ASKED, counted_waits
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, ServiceView, SlotView, ViewAnswer
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
from slicewise.cluster.rpc.overview_messages import MonthNow
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.job_submit import script_since_s
from slicewise.slurm_plugin.common.log import report_failure, warn
from slicewise.slurm_plugin.common.steady_clock import SteadyClock
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.admission.partitions_beside import partitions_beside
from slicewise.slurm_plugin.rules.admission.service_tags import changed_slots
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot
from slicewise.slurm_plugin.rules.admission.unadmitted import Unadmitted, unadmitted
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.reclaim.given_way import GaveWay, gave_way
from slicewise.slurm_plugin.rules.reclaim.requeues import Requeues
from slicewise.slurm_plugin.rules.round.barred import NOTHING_BARRED, Barred
from slicewise.slurm_plugin.rules.services.avoidance import (
    Release,
    lacking_weights,
    waits_too_long,
)
from slicewise.slurm_plugin.rules.services.eviction import Evictions
from slicewise.slurm_plugin.rules.services.leases import LeaseEnd, SlotRunKey, with_end
from slicewise.slurm_plugin.rules.services.pace import PACE, Pace, is_moving, waits
from slicewise.slurm_plugin.rules.services.quota_in_force import QuotaInForce
from slicewise.slurm_plugin.rules.services.remembered_events import RememberedEvents
from slicewise.slurm_plugin.rules.services.slot_actions import (
    SlotActions,
    TenantCapacity,
    after,
    check_may_retire,
    desired_after_restart,
    last_end_s,
    living_slots,
    lost_slots,
    plan_desired,
    plan_guard,
    waits_beyond_quota,
)
from slicewise.slurm_plugin.rules.services.slot_recovery import SlotRecovery
from slicewise.slurm_plugin.rules.services.state import (
    Observation,
    services,
    start_age_s,
    start_marks,
)
from slicewise.slurm_plugin.state.actuator import Actuator
from slicewise.slurm_plugin.state.node_power import NodePower
from slicewise.slurm_plugin.state.observer import SlurmObserver
from slicewise.slurm_plugin.state.pacing import Pacing
from slicewise.slurm_plugin.state.reports import ServiceReports

_STARTS_S, _AGAIN_S = 5.0, 0.15
"""While a slot has been starting for fewer than ``_STARTS_S`` seconds, its certificate may appear
any moment: its array alone is then looked at every ``_AGAIN_S`` seconds. So is one with replicas
that end for a lender, within the grace."""
_SPENT_S = 1.0
"""The same where the questions that the settings allow are used up."""
_AVOIDS_AGAIN_S = 10.0
"""Seconds until slots that could not be let onto the nodes that they avoid are tried again."""
_THROTTLES_S, _THROTTLED_S = 300.0, 5.0
"""Seconds between looks for throttles of services' arrays: as a rule, and while one is felt."""
_FELT = "JobArrayTaskLimit"
_NOTHING = Observation(0.0, (), (), (), {})


class Publishes(Protocol):
    """Receives the snapshots on which admission decides."""

    def publish(self, snapshot: Snapshot, looked_s: float) -> None:
        """Take a snapshot, as ``Admission.publish`` does."""


class ClusterState:
    """What the daemon knows of Slurm now, and the sequence of its actions on services' slots.

    Looking and acting take turns (one lock), so that no view is older than the last action.

    Attributes:
        view: services and tenants as the launcher sees them.
        snapshot: what admission decides on; None before the first look.
        quotas: the quotas in force in Slurm now.
        shares: the share term of each tenant's priority, see ``admission/priority.py``.
        urgencies: urgency of each service's backlog, as last sent by the launcher, by array job id.
        first_until_s: until when jobs go first that Slurm passes over though their GPUs are free,
            by the monotonic clock; see ``round.standstill``.
        barred: waiting jobs that quota alone does not start, as of the last round of lending.
        quota_jobs: ``jobs`` as quota is decided for them: what is barred waits for what bars it.
        gave_way: runs on borrowed quota that were requeued, by the ids of their jobs, which wait;
            those that this daemon has seen.
        refusals: why deferred jobs are held, by job id.
        kept_back: slots that the launcher desires and quota keeps from starting, by array job id.
        desired_slots_versions: number of the last request for an array's slots that was taken, by
            array job id. It only rises; each array gets another one while this daemon does not
            lead.
        service_reports: what the launcher reports about services, for people.
        events: what happened to services' replicas.
        node_power: what boards draw and took, as nodes' meters tell it.
        looked_s: when the last complete look at all jobs began, Unix seconds of ``clock``. Arrays
            that were looked at alone, and nodes, may be shown as they were later.
        looked_monotonic_s: the same moment by the monotonic clock, which nothing sets.
        heard_s: when the launcher, or another process that may set desired slots, was last heard
            of, by the monotonic clock.
        ledger_heard_s: when the ledger last answered, by the monotonic clock.
        pacing: when the next look is due; ``acted`` of it makes one due immediately.
        unadmitted: jobs that slurmctld took without slicewise.lua, in mode enforce.
        is_uninstalled: whether Slicewise was uninstalled from Slurm; then nothing is changed there,
            as in mode observe.
    """

    month: MonthNow | None = None
    """Money and joules, as of the last ten minutes."""

    def __init__(
        self,
        settings: Settings,
        slurm: Slurm,
        admission: Publishes,
        leader: Leader = ALONE,
        pace: Pace = PACE,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._leader = leader
        self._observer = SlurmObserver(slurm)
        self._actuator = Actuator(slurm)
        self._slot_recovery = SlotRecovery()
        self._lock = asyncio.Lock()
        self._starts: asyncio.Task[None] | None = None
        self._seen = _NOTHING
        self._desired_slots: dict[int, frozenset[int]] | None = None
        self._notes: dict[int, str] = {}
        self._followed: frozenset[int] = frozenset()
        self._avoids_due_s: dict[int, float] = {}
        self._for_weights: frozenset[int] = frozenset()
        self._throttles_read_s = float("-inf")
        self._orders: Mapping[tuple[str, str], ServiceOrder] = {}
        self._ends: Mapping[SlotRunKey, LeaseEnd] = {}
        self.quotas = QuotaInForce(settings)
        self.accounts_by_user: Mapping[str, frozenset[str]] = {}
        self.account_parents: Mapping[str, str] = {}
        self.coordinated_by_user: Mapping[str, frozenset[str]] = {}
        self.shares: Mapping[str, float] = {}
        self.money_budgets: tuple[MoneyBudgetStatus, ...] = ()
        self.urgencies: Mapping[int, float] = {}
        self.first_until_s: Mapping[int, float] = {}
        self.barred = NOTHING_BARRED
        self.quota_jobs: tuple[JobView, ...] = ()
        self.gave_way: Mapping[int, GaveWay] = {}
        self.refusals: Mapping[int, Refusal] = {}
        self.kept_back: Mapping[int, frozenset[int]] = {}
        # No number is one that another daemon has given, or this one before it started anew.
        self._numbers = count(int(wall_s() * 1e6))
        # By array: the number of the last request for its slots that was taken, shown to the
        # launcher as ``desired_slots_versions``; one that no request had if none was taken yet.
        self.desired_slots_versions: Mapping[int, int] = {}
        self._pace = pace
        self.pacing = Pacing(pace, ASKED)
        self._looked: list[asyncio.Event] = []
        self._round: asyncio.Future[None] | None = None
        self.service_reports = ServiceReports(leader, self.pacing.stir)
        self.events, self.node_power = RememberedEvents(), NodePower()
        self.evictions = Evictions(leader, time.monotonic)
        self.requeues = Requeues()
        self.clock = SteadyClock()
        self._observed_s = 0.0
        self.looked_s = 0.0
        self.looked_monotonic_s = 0.0
        # The same of the newest look, which may be at some arrays alone.
        self._newest_monotonic_s = 0.0
        self.heard_s = self.ledger_heard_s = time.monotonic()
        self.view = ViewAnswer(observed_s=0.0, complete=False, services=(), tenants=())
        self.snapshot: Snapshot | None = None
        self.unadmitted = Unadmitted()
        self.is_uninstalled = False

    @property
    def passed_over(self) -> frozenset[int]:
        """Ids of the jobs and arrays that go first now, since Slurm passes them over."""
        now_s = time.monotonic()
        return frozenset(key for key, until_s in self.first_until_s.items() if now_s < until_s)

    @property
    def mode(self) -> str:
        """The daemon's current mode: its configured mode, or observe once Slicewise was
        uninstalled.
        """
        return "observe" if self.is_uninstalled else self._settings.daemon.mode

    @property
    def acted(self) -> asyncio.Event:
        """Set when something was changed in Slurm: the next look is then due immediately."""
        return self.pacing.acted

    @property
    def acts(self) -> bool:
        """Whether the daemon may change anything in Slurm now, based on the last look."""
        return self.mode == "enforce" and self.runs_services

    @property
    def runs_services(self) -> bool:
        """Whether it may change services' arrays now, which it does in each mode."""
        return not self.are_services_out and self._leader.leads() and self.view.complete

    @property
    def are_services_out(self) -> bool:
        """Whether services stand still, since the QOS in which they run in enforce are gone."""
        return self.is_uninstalled and self._settings.daemon.mode == "enforce"

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """Slurm's jobs, as of the last complete look."""
        return self._seen.jobs

    @property
    def slurm_s(self) -> float:
        """When the last complete look began, by slurmctld's clock: jobs wait and end by it."""
        return self._seen.at_s

    @property
    def nodes(self) -> tuple[NodeView, ...]:
        """Slurm's nodes, as of the last complete look."""
        return self._seen.nodes

    @property
    def desired_slots(self) -> Mapping[int, frozenset[int]]:
        """Slots that are to run, by array job id."""
        return self._desired_slots or {}

    def after_looks(self) -> asyncio.Event:
        """Return an event of the caller's own that is set after each complete look."""
        event = asyncio.Event()
        self._looked.append(event)
        return event

    def hurry(self) -> None:
        """Have what follows looks take its turn now, since the ledger was changed."""
        for event in self._looked:
            event.set()

    def note_round(self) -> None:
        """Wake who waits for a round of quotas: Slurm's limits have what the ledger had."""
        if self._round is not None and not self._round.done():
            self._round.set_result(None)

    def next_round(self) -> "asyncio.Future[None]":
        """Return what is done once the next round of quotas is over."""
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_future()
        return self._round

    def require_leader(self) -> None:
        """Raise UnreachableError (SW-DAEMON-STANDBY) unless this daemon leads."""
        self._leader.require()

    def set_policy(
        self,
        policy: Policy,
        accounts_by_uid: Mapping[int, Mapping[str, frozenset[str]]],
        highest: Policy | None = None,
    ) -> None:
        """Take the policy that is in force in Slurm from now on.

        ``highest`` is the policy with the most that the calendar ever gives; ``accounts_by_uid`` is
        as in ``Snapshot``.
        """
        self.quotas.set_policy(policy, accounts_by_uid, highest)
        self._publish(self.view.services, complete=self.view.complete)

    def set_accounts(self, accounts_by_uid: Mapping[int, Mapping[str, frozenset[str]]]) -> None:
        """Take other accounts of users, as in ``Snapshot``; the policy stays."""
        self.quotas.accounts_by_uid = accounts_by_uid
        self._publish(self.view.services, complete=self.view.complete)

    def set_members(
        self, accounts_by_user: Mapping[str, frozenset[str]], parents: Mapping[str, str]
    ) -> None:
        """Take which accounts each of Slurm's users has and which account is above which, after a
        complete look at them.
        """
        self.accounts_by_user, self.account_parents = accounts_by_user, parents

    def set_coordinators(self, by_account: Mapping[str, frozenset[str]]) -> None:
        """Take the coordinators of each of Slurm's accounts, after a complete look at them."""
        by_user: dict[str, set[str]] = {}
        for account, users in by_account.items():
            for user in users:
                by_user.setdefault(user, set()).add(account)
        self.coordinated_by_user = {user: frozenset(own) for user, own in by_user.items()}

    def bar(self, barred: Barred) -> None:
        """Take what is barred as of a round of lending."""
        self.barred = barred
        told = barred.told(self._seen.jobs)
        is_same = told is self._seen.jobs
        self.quota_jobs = told if is_same else as_known(self.quota_jobs, told)

    def set_ends(self, ends: Mapping[SlotRunKey, LeaseEnd]) -> None:
        """Set which runs of slots must end, and when; the view shows them from the next look on."""
        self._ends = ends

    def hear(self) -> None:
        """Note that the launcher is alive, so leases are extended."""
        self.heard_s = time.monotonic()

    def hear_ledger(self) -> None:
        """Note that the ledger answers."""
        self.ledger_heard_s = time.monotonic()

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Set the share term of each tenant's priority; admission uses it from the next look on."""
        self.shares = shares

    def set_orders(self, orders: Mapping[tuple[str, str], ServiceOrder]) -> None:
        """Set what services' owners ordered, by tenant and name; the view shows it immediately."""
        self._orders = orders
        self.show()

    def show(self) -> None:
        """Have the view show at once what is ordered, and who is told to end."""
        shown = tuple(map(self._shown, self.view.services))
        self.view = self.view.model_copy(update={"services": shown})

    async def turn(self) -> None:
        """Look at Slurm once, and hold slots that must not start.

        Where looks at all jobs are slow, arrays that were changed are looked at alone meanwhile.
        Raises SlicewiseError if Slurm does not answer. After any failure the view is incomplete,
        and nothing is changed in Slurm.
        """
        async with self._lock:
            if self._starts is not None:
                self._starts.cancel()
            arrays = self.pacing.alone() if self.view.complete else None
            service_views = await (self._look_at(arrays) if arrays else self._look())
            if service_views is None:
                # The next turn looks at all jobs, once slurmctld has had its pause.
                self.acted.set()
                return
            if self.runs_services:
                await self._guard()
            self._watch_starts(service_views)

    async def _look(self) -> tuple[ServiceView, ...]:
        began_s, began_monotonic_s = self.clock.now_s(), time.monotonic()
        observed_s = wall_s()
        at_rest = self.pacing.begin()
        with self._incomplete_on_failure():
            with counted_waits() as slurm:
                seen = await self._observer.look(at_rest=at_rest)
            self._observed_s = observed_s
            self.looked_s, self.looked_monotonic_s = began_s, began_monotonic_s
            service_views = self._take(seen, began_monotonic_s)
        is_kept = any(self.kept_back.values()) or self.evictions.has_waiting
        moves = is_kept or is_moving(service_views, self._seen.at_s)
        self.pacing.end(slurm.waited_s, moves=moves, waits=waits(self._seen.jobs))
        self.hurry()
        return service_views

    async def _look_at(self, arrays: frozenset[int]) -> tuple[ServiceView, ...] | None:
        """Look at these arrays and at nodes; None if only a look at all jobs can show them.

        Limits may grow on it as on the last look at all jobs: what has started since then has
        started within the limits of then.
        """
        began_monotonic_s = time.monotonic()
        with self._incomplete_on_failure():
            seen = await self._observer.look_at(arrays, self._seen)
            if seen is None:
                return None
            service_views = self._take(seen, began_monotonic_s)
        self.hurry()
        return service_views

    @contextmanager
    def _incomplete_on_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.view = self.view.model_copy(update={"complete": False})
            raise

    def _take(self, seen: Observation, began_monotonic_s: float) -> tuple[ServiceView, ...]:
        """Show what a look has seen; return the services in it."""
        before, self._seen = self._seen, seen
        self._newest_monotonic_s = began_monotonic_s
        self.bar(self.barred)
        self.gave_way = gave_way(self.gave_way, before.jobs, seen.jobs, int(seen.at_s))
        service_views = services(seen, self._settings.costs, self._settings.memory_mib)
        self._notice_unadmitted()
        self._follow(service_views)
        self._publish(service_views, complete=True)
        shown = self.view.services
        self.events.follow(shown, self.service_reports.of(shown), int(seen.at_s))
        return service_views

    async def set_desired_slots(
        self,
        array_job_id: int,
        run: frozenset[int],
        note: str = "",
        urgency: float = 0.0,
        *,
        avoid: Sequence[str] = (),
        after: int,
    ) -> DesiredSlotsAnswer:
        """Bring a service's slots to those desired, within its tenant's quota.

        ``run`` are the slots to run. Slots that are released now start on a node in ``avoid`` only
        if they find no other one soon; its first nodes matter most. ``note`` is shown with the
        service unless the quota check has a note of its own. ``after`` is the number of the last
        request for these slots that the view showed on which the launcher decided this one. Raises
        InvalidInputError (SW-SERVICE-UNKNOWN,
        SW-SERVICE-CHANGED if another request was taken since), and UnreachableError
        (SW-SLURM-DOWN, SW-DAEMON-STANDBY).
        """
        self.hear()
        # The launcher waits for a look that shows what it has asked for.
        self.pacing.stir()
        async with self._lock:
            service = self.service(array_job_id)
            self._require_complete_view()
            self._require_newest(array_job_id, after)
            self.urgencies = {**self.urgencies, array_job_id: urgency}
            self._followed |= {array_job_id}
            if self.are_services_out:
                return DesiredSlotsAnswer(kept_back=tuple(sorted(run)), note=UNINSTALLED.message)
            plan = self._planned(service, run)
            if plan.kept_back and self._may_be_outdated():
                await self._look()
                # What else it shows is followed by the next turn.
                self.acted.set()
                service = self.service(array_job_id)
                plan = self._planned(service, run)
            if self._desired_slots is not None:
                self._desired_slots[array_job_id] = run
            self.desired_slots_versions = {
                **self.desired_slots_versions,
                array_job_id: next(self._numbers),
            }
            self._notes[array_job_id] = plan.note or note
            self.kept_back = {**self.kept_back, array_job_id: plan.kept_back}
            await self._avoid(self._release(service, plan.release, avoid))
            if plan.requeue_hold:
                # Its owner may have cancelled the array since the look.
                beside = living_slots(service) - plan.requeue_hold
                if beside:
                    self._slot_recovery.revive(array_job_id, beside)
                else:
                    plan = replace(plan, requeue_hold=await self._still_living(service, plan))
            ended_s = last_end_s(self.jobs, array_job_id, plan.release, self.slurm_s)
            if await self._apply(service, plan, ended_s):
                self.pacing.change({array_job_id})
            return DesiredSlotsAnswer(
                released=tuple(sorted(plan.release)),
                held=tuple(sorted(plan.hold | plan.requeue_hold)),
                kept_back=tuple(sorted(plan.kept_back)),
                note=plan.note,
            )

    def _planned(self, service: ServiceView, run: frozenset[int]) -> SlotActions:
        room = self._room(service)
        changed = self._changed(service) & run
        plan = plan_desired(service, run - changed, room)
        if not changed:
            return plan
        note = "its account, partition, GPUs or time were changed in Slurm; apply it again"
        return replace(plan, kept_back=plan.kept_back | changed, note=plan.note or note)

    def _changed(self, service: ServiceView) -> frozenset[int]:
        """Waiting slots that their user has changed; in enforce slicewise.lua lets him not."""
        if self.mode == "enforce":
            return frozenset()
        return changed_slots(service, self.jobs, frozenset(self._settings.cluster.partitions))

    def _room(self, service: ServiceView) -> TenantCapacity | None:
        # Loans are only imagined in other modes.
        borrows = self.mode == "enforce" and not self.evictions.waits(service.tenant)
        return self.quotas.room(service, self.jobs, self.view.services, borrows=borrows)

    def _may_be_outdated(self) -> bool:
        """Whether quota that is used up may have become free since the last look."""
        age_s = time.monotonic() - self.looked_monotonic_s
        return age_s > self._pace.moving_s and self.pacing.may_look_now

    def _watch_starts(self, service_views: tuple[ServiceView, ...]) -> None:
        """Make the next look due as soon as a start is nearly complete or has failed, or a replica
        has ended for whose slices a lender waits.
        """
        ages_s = ((service, start_age_s((service,), self._seen.at_s)) for service in service_views)
        young = [service for service, age_s in ages_s if age_s is not None and age_s < _STARTS_S]
        slots = [slot for service in young for slot in service.slots]
        if any(slot.state == "starting" and slot.certificate for slot in slots):
            # Ports do not show in its job.
            new = {service.array_job_id for service in young}
            asyncio.get_running_loop().call_later(_AGAIN_S, self.pacing.change, new)
        elif arrays := frozenset(
            service.array_job_id for service in (*young, *self._awaited(service_views))
        ):
            self._starts = asyncio.create_task(self._until_changed(arrays))

    def _awaited(self, service_views: tuple[ServiceView, ...]) -> Sequence[ServiceView]:
        """The services with replicas that end while a lender waits, within the grace: an end that
        takes longer, as on a node that hangs, may take hours.
        """
        if not self.evictions.has_waiting:
            return ()
        leaving = (service for service in service_views if self.evictions.waits(service.tenant))
        return [
            service for service in leaving if any(slot.state == "ending" for slot in service.slots)
        ]

    async def _until_changed(self, arrays: frozenset[int]) -> None:
        seen = start_marks(job for job in self.jobs if job.array_job_id in arrays)
        # A Slurm that does not answer is reported by the next look.
        with suppress(SlicewiseError):
            now, pause_s = seen, _AGAIN_S
            while now == seen:
                await asyncio.sleep(pause_s)
                asked_s = time.monotonic()
                now = start_marks(await self._observer.tasks(arrays))
                took_s = time.monotonic() - asked_s
                pause_s = max(_SPENT_S if self.pacing.has_spent_all else _AGAIN_S, took_s)
            self.pacing.change(arrays)

    async def retire(self, array_job_id: int) -> None:
        """Cancel an array that is no longer needed, else InvalidInputError (SW-SERVICE-CHANGED)."""
        async with self._lock:
            check_may_retire(self.service(array_job_id), self.view.services)
            await self._cancel(array_job_id)

    async def delete(self, array_job_id: int) -> None:
        """Cancel a service's array; InvalidInputError (SW-UNINSTALLED) once Slicewise is out."""
        async with self._lock:
            self.service(array_job_id)
            await self._cancel(array_job_id)

    async def _cancel(self, array_job_id: int) -> None:
        self._require_complete_view()
        if self.are_services_out:
            hint = f"The service's owner can: scancel {array_job_id}"
            raise InvalidInputError(UNINSTALLED.code, UNINSTALLED.message, hint)
        await self._actuator.cancel(array_job_id)
        self.pacing.change({array_job_id})

    def service(self, array_job_id: int) -> ServiceView:
        """The living service with that array; InvalidInputError (SW-SERVICE-UNKNOWN) if none."""
        for service in self.view.services:
            if service.array_job_id == array_job_id:
                return service
        raise InvalidInputError(
            Code.SERVICE_UNKNOWN, f"Job {array_job_id} is not a service in Slurm's queue."
        )

    def _require_complete_view(self) -> None:
        self._leader.require()
        if not self.view.complete:
            raise UnreachableError(
                Code.SLURM_DOWN, "Slurm does not answer the daemon now.", "Try again."
            )

    def _require_newest(self, array_job_id: int, after: int) -> None:
        """Refuse a request if another one for the array was taken since it was decided.

        ``after`` is the number of the last one that was known then.
        """
        if after != self.desired_slots_versions.get(array_job_id):
            raise InvalidInputError(
                Code.SERVICE_CHANGED,
                f"Another request for slots of job {array_job_id} was carried out since this one"
                " was decided.",
                "The launcher decides again at its next round.",
            )

    def _notice_unadmitted(self) -> None:
        """Find jobs that slicewise.lua did not mark, and warn when there is a newer one.

        Nothing else reports a job_submit script that slurmctld refuses.
        """
        if self.mode != "enforce":
            return
        before = self.unadmitted
        managed = frozenset(self._settings.cluster.partitions)
        partitions = managed.union(partitions_beside(self.nodes, managed))
        self.unadmitted = unadmitted(self.jobs, partitions, script_since_s())
        if self.unadmitted.newest > before.newest:
            warn("not_admitted", job_id=self.unadmitted.newest, jobs=self.unadmitted.count)

    def _follow(self, service_views: tuple[ServiceView, ...]) -> None:
        """Keep the desired slots of living services only.

        At the first look, and while another daemon receives them, every slot that is under
        way counts as desired.
        """
        if self._desired_slots is None or not self._leader.leads():
            self._desired_slots = {s.array_job_id: desired_after_restart(s) for s in service_views}
            self.desired_slots_versions = {}
        before = self._desired_slots
        self._desired_slots = {
            s.array_job_id: before.get(s.array_job_id, frozenset()) for s in service_views
        }
        self._notes = {array: self._notes.get(array, "") for array in self._desired_slots}
        self.kept_back = {
            array: kept for array, kept in self.kept_back.items() if array in self._desired_slots
        }
        self.desired_slots_versions = {
            array: self.desired_slots_versions.get(array) or next(self._numbers)
            for array in self._desired_slots
        }
        self._followed &= self._desired_slots.keys()
        self.urgencies = {array: self.urgencies.get(array, 0.0) for array in self._desired_slots}

    def _publish(self, service_views: tuple[ServiceView, ...], *, complete: bool) -> None:
        seen, used = self._seen, self.quotas.used(self._seen.jobs)
        self.view = ViewAnswer(
            observed_s=self._observed_s,
            complete=complete,
            services=tuple(map(self._shown, service_views)),
            tenants=self.quotas.views(used, seen.at_s),
        )
        snapshot = self.quotas.snapshot(seen, service_views, used, self.shares)
        self.snapshot = replace(snapshot, is_uninstalled=self.is_uninstalled)
        self._admission.publish(self.snapshot, self.looked_monotonic_s)

    async def _guard(self) -> None:
        self._slot_recovery.follow(self.view.services, self._newest_monotonic_s)
        self._slot_recovery.follow_unanswered(
            self.view.services, self.jobs, self._newest_monotonic_s
        )
        cancelled = self._slot_recovery.cancelled(self.view.services)
        for service in self.view.services:
            array = service.array_job_id
            try:
                if array in cancelled:
                    await self._actuator.cancel(array)
                else:
                    await self._guard_slots(service)
            except SlicewiseError as error:
                report_failure("guard_failed", error, array=array)
        await self._stop_avoiding(cancelled)
        await self._stop_throttling(cancelled)

    async def _stop_avoiding(self, cancelled: Collection[int]) -> None:
        """Let slots that have waited too long start on any node.

        An array whose slots could not be changed is tried again later, not at each look.
        """
        now_s = time.monotonic()
        late = waits_too_long(self.jobs, self._seen.at_s, self._for_weights)
        self._avoids_due_s = {a: due_s for a, due_s in self._avoids_due_s.items() if a in late}
        arrays = {service.array_job_id for service in self.view.services}.difference(cancelled)
        for array in sorted(arrays & late.keys()):
            if now_s < self._avoids_due_s.get(array, 0.0):
                continue
            try:
                is_done = await self._avoid(Release(array, late[array]))
            except SlicewiseError as error:
                is_done = False
                report_failure("avoidance_failed", error, array=array)
            if not is_done:
                self._avoids_due_s[array] = now_s + _AVOIDS_AGAIN_S

    async def _stop_throttling(self, cancelled: Collection[int]) -> None:
        """Take the throttles of services' arrays off.

        slurmctld sets a throttle before it asks whether its user may, and before slicewise.lua can
        refuse it.
        """
        services, now_s = self.view.services, time.monotonic()
        arrays = {service.array_job_id for service in services}.difference(cancelled)
        felt = {
            service.array_job_id
            for service in services
            if any(slot.reason == _FELT for slot in service.slots)
        }
        due_s = self._throttles_read_s + (_THROTTLED_S if felt else _THROTTLES_S)
        if not arrays or now_s < due_s:
            return
        self._throttles_read_s = now_s
        try:
            await self._actuator.unthrottle(arrays, felt & arrays - folded_tasks(self.jobs).keys())
        except SlicewiseError as error:
            report_failure("throttles_not_read", error)

    def _release(
        self, service: ServiceView, slots: frozenset[int], avoid: Sequence[str]
    ) -> Release:
        """Keep slots off the nodes on which replicas fail, else off those without their weights."""
        release = Release(service.array_job_id, slots, avoid)
        if not slots:
            return release
        self._for_weights -= {service.array_job_id}
        (told,) = self.service_reports.starts((service,))
        seen = (self.view.services, self.jobs, self.nodes)
        others = () if avoid else lacking_weights(release, told.starts, *seen)
        self._for_weights |= {service.array_job_id} if others else frozenset()
        return replace(release, avoid=avoid or others)

    async def _avoid(self, release: Release) -> bool:
        return await self._actuator.avoid(release, self.jobs, self.nodes)

    async def _guard_slots(self, service: ServiceView) -> None:
        array = service.array_job_id
        due = self._slot_recovery.due(array, self._newest_monotonic_s)
        revive = await self._still_lost(array, due) if due else due
        desired = self.desired_slots[array] - self.evictions.kept(service) - self._changed(service)
        room = self._room(service) if waits_beyond_quota(service) else None
        plan = plan_guard(service, desired, revive, room)
        await self._apply(service, plan)

    async def _apply(
        self, service: ServiceView, plan: SlotActions, ended_s: float | None = None
    ) -> bool:
        """Carry the plan out as ``Actuator.apply`` does; the view then has what it changed."""
        if plan.acts:
            self.pacing.touch(service.array_job_id)
        try:
            is_done = await self._actuator.apply(service, plan, ended_s)
        except SlicewiseError:
            if plan.requeue_hold or plan.revive:
                self._slot_recovery.unanswered(service.array_job_id, time.monotonic())
            raise
        if is_done:
            self._replace(after(service, plan))
        return is_done

    async def _still_living(self, service: ServiceView, plan: SlotActions) -> frozenset[int]:
        """Return the slots to requeue that still live.

        Slurm would bring back those of an array that its owner has cancelled, and no slot beside
        them is left that could tell.
        """
        looked = await self._observer.look_again(self._seen, service.array_job_id)
        now = services(looked, self._settings.costs)
        return plan.requeue_hold.intersection(*map(living_slots, now)) if now else frozenset()

    async def _still_lost(self, array_job_id: int, due: frozenset[int]) -> frozenset[int]:
        """Return the slots in ``due`` that are still lost.

        The owner may have cancelled the whole array since the look: then none is brought back.
        """
        looked = await self._observer.look_again(self._seen, array_job_id)
        slots: frozenset[int] = frozenset()
        for now in services(looked, self._settings.costs):
            if slots := lost_slots(now) & due:
                self._slot_recovery.revive(array_job_id, living_slots(now))
        return slots

    def _shown(self, service: ServiceView) -> ServiceView:
        note = self._notes.get(service.array_job_id, "")
        order = self._orders.get((service.tenant, service.name), NO_ORDER)
        array, ends, now_s = service.array_job_id, self._ends, self._seen.at_s

        def with_its_end(slot: SlotView) -> SlotView:
            ended = with_end(slot, ends.get((array, slot.index, slot.start_s)), now_s)
            return self.evictions.shown(array, ended)

        return service.model_copy(
            update={
                "note": note,
                "order": order,
                "slots": tuple(map(with_its_end, service.slots)),
                "is_followed": array in self._followed,
            }
        )

    def _replace(self, service: ServiceView) -> None:
        changed = self._shown(service)
        self.view = self.view.model_copy(
            update={
                "services": tuple(
                    changed if s.array_job_id == service.array_job_id else s
                    for s in self.view.services
                )
            }
        )
