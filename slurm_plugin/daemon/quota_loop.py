"""The loop from the ledger to Slurm: lends idle quota and compiles limits.

It is a loop of its own, so that a slow slurmdbd delays neither sync nor charging.
"""

import asyncio
import pwd
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import JobView, RunOfJob, as_known
from slicewise.cluster.language.leader import ALONE, Leader
from slicewise.cluster.language.slurm.asked import counted_waits
from slicewise.cluster.language.slurm.interface import Association, Qos, Slurm
from slicewise.cluster.language.units import slices_text
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report, report_failure, warn
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now, left_millislice_s
from slicewise.slurm_plugin.quota_cycle.compile import (
    Compiled,
    LimitsUnsettledError,
    compile_in_turn,
    compile_turn,
    is_uninstalled,
    slurm_now,
)
from slicewise.slurm_plugin.quota_cycle.lend import Renewed, planned, renew
from slicewise.slurm_plugin.quota_cycle.uninstall import finish
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.common.free_instances import is_usable
from slicewise.slurm_plugin.rules.common.qos_names import holder, holder_of
from slicewise.slurm_plugin.rules.common.released_soon import ReleasedSoon
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED
from slicewise.slurm_plugin.rules.limits.changes import changed_qos
from slicewise.slurm_plugin.rules.limits.nudge import nudge
from slicewise.slurm_plugin.rules.quota.calendar import in_force, loosely_within
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.types import Loan
from slicewise.slurm_plugin.rules.reclaim.requeueable import kill_wait_s, requeueable, spared
from slicewise.slurm_plugin.rules.round.barred import NOTHING_BARRED, Barred, barred
from slicewise.slurm_plugin.rules.round.due import (
    NO_NEEDS,
    REST,
    LastRound,
    RoundNeeds,
    granted,
    is_due,
    needs,
)
from slicewise.slurm_plugin.rules.round.kept_back import kept_back_waiting
from slicewise.slurm_plugin.rules.round.round import RoundPlan, plan
from slicewise.slurm_plugin.rules.round.standstill import (
    Queued,
    first_until_s,
    standing_still,
    stuck,
)
from slicewise.slurm_plugin.rules.round.wanted import Conf
from slicewise.slurm_plugin.rules.round.what_if import ImaginedRound, imagined
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of
from slicewise.slurm_plugin.rules.services.hold_back import about_to_start
from slicewise.slurm_plugin.rules.services.slot_actions import TenantCapacity, released_soon
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_QUICK_S = 0.1
"""A plan that took longer is not made again for as long as it took. On a large cluster it takes a
second of the processor, which sync and bookkeeping need too."""
_LONGEST_REST_S = 15.0
"""Upper bound of that pause."""


_ACCOUNTS_S = 5.0
"""Seconds at least after a look at the accounts of Slurm's users because one of them was refused,
until the next; ``REST`` times as long as the look took if that is more. slurmdbd may take seconds
for it, and every user can be refused at any time."""
_COORDINATORS_S = 60.0
"""Seconds between two looks at who coordinates which account."""
_MOVE_AGAIN_S = 300.0
"""Seconds until an uninstall tries again to move the jobs that Slurm refused to move."""
_SILENT_S = 30.0
"""Seconds after which a launcher that was not heard releases nothing soon."""
_CONF_S = 120.0
"""Seconds for which the values read from slurm.conf, with its partitions, are reused; an operator
changes them now and then."""


_NO_QOS: frozenset[str] = frozenset()


class QuotaLoop:
    """Keeps Slurm's limits and the admission snapshot in line with the ledger."""

    def __init__(
        self,
        settings: Settings,
        slurm: Slurm,
        ledger: Ledger,
        cluster_state: ClusterState,
        leader: Leader = ALONE,
        *,
        held_lately: Callable[[], Mapping[str, float]] = dict,
        on_imagined: Callable[[ImaginedRound], None] = lambda _: None,
    ) -> None:
        """``held_lately`` returns the millislices that each tenant has held on average.

        ``on_imagined`` is told of each round of lending that a mode other than enforce leaves out.
        """
        self._on_imagined = on_imagined
        self._imagined: tuple[Loan, ...] = ()
        self._settings = settings
        self._held_lately = held_lately
        self._leader = leader
        self._led = False
        self._slurm = slurm
        self._ledger = ledger
        self._cluster_state = cluster_state
        # ``_renewed`` is the last plan, ``_written`` the ledger as of the last plan that was
        # written. ``_in_force`` is the ledger as admission has it, and as Slurm has it if this
        # daemon compiles.
        self._renewed: Renewed | None = None
        self._written: LedgerView | None = None
        self._in_force: LedgerView | None = None
        self._still_since_s: Mapping[Queued, float] = {}
        # The jobs as Slurm shows them, and those as quota is decided for them if these differ.
        nobody = jobs_by_holder((), self._partitions, settings.costs, settings.models)
        self._classified: dict[bool, tuple[tuple[JobView, ...], JobsByHolder]] = {
            True: ((), nobody),
            False: ((), nobody),
        }
        self._wanting: tuple[JobView, ...] = ()
        self._conf: Conf | None = None
        self._last: LastRound | None = None
        # What was planned to see needs: for which look, and in this turn.
        self._needs, self._planned_jobs = NO_NEEDS, tuple[JobView, ...]()
        self._planned: Renewed | None = None
        self._plan_due_s = self._conf_due_s = 0.0
        # Batch jobs to requeue by a plan of this turn, and tenants of which Slurm refused a limit
        # last.
        self._to_requeue: Mapping[RunOfJob, str] = {}
        self._refused_of: frozenset[str] = frozenset()
        # QOS as they were read last, and as the last round left them; none changed since the moment
        # ``_limits_since_s``.
        self._qos: tuple[Qos, ...] = ()
        self._limits_since_s = inf
        self._moves_tried: dict[int, str] = {}
        self._move_again_s = 0.0
        self._warned: frozenset[str] = frozenset()
        self._seeing, self._see_again_s = asyncio.Lock(), 0.0
        self._coordinators_due_s = 0.0

    async def start(self) -> None:
        """Compile once; if Slurm fails, start on the limits that it has.

        Slurm does the counting, so admission need not wait for a compilation. The turns try again.
        """
        try:
            await self.compile()
        except (UnreachableError, OutsideError) as error:
            ledger_view = await self._ledger_view()
            report_failure("start_limits_failed", error)
            await self._publish(ledger_view, await self._associations_or_none())

    async def turn(self) -> None:
        """Compile if something is due, and end runs where lenders take slices back.

        If Slurm refuses a limit of one tenant, admission still gets the changes of the others, and
        lenders take back what is not that tenant's. Then the turn fails.
        """
        self._to_requeue, self._planned = {}, None
        unsettled: LimitsUnsettledError | None = None
        if await self._is_due():
            try:
                await self.compile()
            except LimitsUnsettledError as error:
                unsettled = error
            except OutsideError:
                await self._publish(await self._ledger_view(), await self._slurm.associations())
                raise
        self._take_back()
        await self._requeue()
        if unsettled is not None:
            raise unsettled

    async def compile(self) -> None:
        """Lend idle quota, compile the ledger into Slurm's limits, and update admission.

        Where Slicewise was uninstalled from Slurm, go on with the uninstall instead. After a
        failure the compilation is due again at the next turn.
        """
        began_s, took_s = time.monotonic(), 0.0
        unserved, self._last = self._needs.limits, None
        self._to_requeue = {}
        unsettled: LimitsUnsettledError | None = None
        self._led = self._leader.leads()
        if self._compiles:
            async with compile_turn(self._ledger):
                began_s = time.monotonic()
                with counted_waits() as slurm:
                    try:
                        ledger_view, compiled = await self._compiled()
                    except LimitsUnsettledError as error:
                        unsettled, compiled = error, error.compiled
                        ledger_view = compiled.ledger_view
                took_s = min(time.monotonic() - began_s, slurm.waited_s)
        else:
            ledger_view, compiled = await self._ledger_view(), None
            self._follow_uninstall(ledger_view.is_uninstalled)
        if compiled is not None:
            self._report(compiled)
            self._refused_of = compiled.refused_of
            self._cluster_state.quotas.set_standings(compiled.standings, compiled.run_minutes)
            if compiled.changes:
                unserved = frozenset()
                # What starts now shows in the next looks, and jobs may move to where there is room.
                self._cluster_state.pacing.stir()
                await self._nudge(changed_qos(compiled.changes))
            await self._publish(ledger_view, compiled.associations)
            # This comes last: a client that reads "in force" may submit immediately.
            is_whole = unsettled is None and not compiled.waits
            if ledger_view.change_id > ledger_view.compiled_id and is_whole:
                await asyncio.to_thread(self._ledger.limits.mark_compiled, ledger_view.change_id)
            self._cluster_state.note_round()
        else:
            # This daemon does not know what another daemon does meanwhile.
            self._renewed = self._written = None
            self._limits_since_s = inf
            self._cluster_state.bar(NOTHING_BARRED)
            await self._publish(ledger_view, await self._slurm.associations())
            if self._compiles:
                await self._finish_uninstall()
            elif self._imagines:
                self._on_imagined(await asyncio.to_thread(self._imagine, ledger_view))
        self._in_force, self._needs = ledger_view, NO_NEEDS
        ended_s = time.monotonic()
        self._last = LastRound(ended_s, took_s, unserved, ended_s - began_s)
        if unsettled is not None:
            raise unsettled

    async def _nudge(self, changed: frozenset[str]) -> None:
        """Have slurmctld schedule now, if jobs wait in QOS whose limits were changed.

        Where Slurm refuses, they start at its own intervals.
        """
        if change := nudge(self._cluster_state.jobs, changed):
            with suppress(UnreachableError, OutsideError):
                await self._slurm.update(change)

    async def _compiled(self) -> tuple[LedgerView, Compiled | None]:
        """Look at Slurm and the ledger once, lend, and compile; None in place of the result where
        Slicewise was uninstalled from Slurm.

        Slurm is read first: without slurmdbd the grace of a recall would otherwise pass before the
        first limit moves, and then the limits of lender and borrower would move together.
        """
        now_s, seen = time.monotonic(), self._cluster_state
        jobs, nodes = (seen.jobs, seen.nodes) if seen.view.complete else (None, None)
        is_after = self._limits_since_s < seen.looked_monotonic_s
        conf = self._conf if now_s < self._conf_due_s else None
        shown = await slurm_now(self._slurm, jobs, nodes, conf)
        if conf is None:
            self._conf, self._conf_due_s = shown.conf, now_s + _CONF_S
        is_same, since_s = shown.qos == self._qos, self._limits_since_s
        if jobs is not None:
            # The look came after the last change of a limit.
            shown = replace(shown, is_fresh=is_after and is_same)
        self._qos, self._limits_since_s = shown.qos, inf
        ledger_view = await self._ledger_view()
        self._follow_uninstall(is_uninstalled(ledger_view, shown.qos, self._settings))
        if seen.is_uninstalled:
            return ledger_view, None
        lent = await self._lend(ledger_view, shown.associations)
        world = self._renewed.world if self._renewed else None
        soon = await asyncio.to_thread(self._released_soon)
        shown = replace(shown, barred=seen.barred, soon=soon, world=world)
        compiled = await compile_in_turn(self._slurm, self._ledger, self._settings, shown, lent)
        if compiled.changes or not is_same or since_s == inf:
            since_s = time.monotonic()
        self._qos, self._limits_since_s = compiled.qos, since_s
        return compiled.ledger_view, compiled

    def _follow_uninstall(self, is_out: bool) -> None:
        """Follow whether Slicewise is uninstalled, and log each change once.

        While it is, the daemon decides and changes nothing, until limits are wanted again.
        """
        if is_out and not self._cluster_state.is_uninstalled:
            warn("uninstalled", text=UNINSTALLED.text())
        elif self._cluster_state.is_uninstalled and not is_out:
            report("wanted_again")
        self._cluster_state.is_uninstalled = is_out

    async def _finish_uninstall(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._move_again_s:
            self._moves_tried, self._move_again_s = {}, now_s + _MOVE_AGAIN_S
        before = frozenset(self._moves_tried)
        done = await finish(self._slurm, self._ledger, self._settings, tried=self._moves_tried)
        if done is None:
            return
        self._moves_tried = dict(done.unmoved)
        for change in done.changes:
            report("uninstall_step", sacctmgr=" ".join(change))
        for command in done.given_back:
            report("uninstall_step", scontrol=command.removeprefix("scontrol "))
        refused = done.unmoved.keys() - before
        if done.moved or refused:
            report("qos_moved", jobs=done.moved_jobs, refused=len(refused))

    async def _is_due(self) -> bool:
        """Whether to compile now: the ledger or the lead changed, somebody waits for what a round
        would give, or the time has come.
        """
        if self._in_force is None or self._last is None or self._leader.leads() != self._led:
            return True
        if await self._is_ledger_another(self._in_force):
            return True
        await self._see_needs()
        return is_due(self._last, self._needs, time.monotonic())

    async def _is_ledger_another(self, before: LedgerView) -> bool:
        """Whether the policy (also by the calendar) or the amounts granted to budgets changed.

        A rollover or a grant of a budget counts in Slurm immediately.
        """
        ledger = self._ledger
        if await asyncio.to_thread(ledger.tenants.change_id) != before.change_id:
            return True
        windows = await asyncio.to_thread(ledger.windows.not_over)
        if windows != before.windows:
            return True
        now = moment(self._cluster_state.clock.now_s(), self._settings.ledger.time_zone)
        if in_force(before.tenants, windows, now) != before.policy:
            return True
        if not any(tenant.budget for tenant in before.policy.values()):
            return False
        balances = await asyncio.to_thread(ledger.budgets.balances)
        return granted(before.policy, balances) != granted(before.policy, before.balances)

    async def _see_needs(self) -> None:
        """See what a round would change for those who wait, and whom Slurm passes over, once for
        each look; while quota is recalled also between looks, as a grace may be over. Also plans
        which replicas go then.
        """
        written, seen = self._written, self._cluster_state
        if not self._lends or written is None:
            self._needs = NO_NEEDS
            return
        if written.recalls:
            # What comes back shows in looks, and lenders wait for it.
            seen.pacing.stir()
        began_s, jobs = time.monotonic(), seen.jobs
        if began_s < self._plan_due_s or (jobs is self._planned_jobs and not written.recalls):
            return
        self._still_since_s, seen.first_until_s = await asyncio.to_thread(self._standing_still)
        self._needs = await asyncio.to_thread(self._needs_after, written)
        self._planned_jobs, self._plan_due_s = jobs, _rested_s(began_s)

    def _needs_after(self, written: LedgerView) -> RoundNeeds:
        """Plan a round on the ledger as it was ``written`` last; another process may have written
        other recalls.
        """
        settings, now_s = self._settings, self._cluster_state.clock.now_s()
        ledger_view = replace(written, when=moment(now_s, settings.ledger.time_zone))
        if written.recalls:
            ledger_view = ledger_view_now(self._ledger, settings, now_s)
        self._planned = renewed = planned(ledger_view, settings, self._seen())
        round_plan = renewed.plan
        wanted = needs(renewed.world, round_plan, self._cluster_state.quotas.standings)
        if frozenset(ledger_view.recalls) != frozenset(written.recalls):
            wanted = replace(wanted, recalls=frozenset(round_plan.recalls))
        if written.recalls and wanted.recalls is None:
            self._renewed = renewed
            self._to_requeue = round_plan.reclaim.requeues
        elif written.recalls and self._renewed is not None:
            # Others go only after a round, which may rest.
            self._renewed = replace(self._renewed, plan=_still(self._renewed.plan, round_plan))
        return wanted

    def _take_back(self) -> None:
        """Tell replicas to go that hold recalled slices.

        Called once the limits are in Slurm, so that nothing new starts on recalled quota.
        """
        if self._renewed is None or not self._lends:
            return
        evictions, services = self._cluster_state.evictions, self._cluster_state.view.services
        plan, grace_s = self._renewed.plan, self._settings.lending.grace_s
        victims = self._may_go(plan.reclaim.victims)
        if told := evictions.end(victims, plan.over, services, grace_s):
            # The launcher needs no look for it, and what it does about it waits for none.
            self._cluster_state.show()
            self._cluster_state.pacing.stir()
        for eviction in told:
            report("reclaimed", job_id=eviction.job_id, service=eviction.service, why=eviction.why)
        if evictions.has_waiting:
            jobs = self._by_holder(self._cluster_state.jobs)
            starting = about_to_start(self._renewed.before.policy, jobs)
            evictions.wait_on(plan.recalls, starting)

    async def _requeue(self) -> None:
        """Requeue the batch jobs that a plan of this turn names.

        Called like ``_take_back``. What Slurm refuses to requeue is left to its preemption.
        """
        why, state = self._may_go(self._to_requeue), self._cluster_state
        if not why or not self._lends:
            return
        jobs = state.jobs
        done = await self._slurm.requeue(why)
        # A look that began before the answer may show that they run.
        state.requeues.note(done, why, jobs, time.monotonic())
        for run in sorted(done.ended, key=list(why).index):
            report("reclaimed", job_id=run[0], why=why[run])
        for (job_id, _), words in done.refused.items():
            warn("requeue_refused", job_id=job_id, why=words)
        if done.ended:
            state.acted.set()

    def _may_go(self, why: Mapping[RunOfJob, str]) -> Mapping[RunOfJob, str]:
        """Those of these runs of the last plan that may end, whatever limits Slurm refused."""
        kept = self._spared
        if not why or not kept:
            return why
        whose = {(job.job_id, job.start_s): holder_of(job) for job in self._cluster_state.jobs}
        return {run: text for run, text in why.items() if whose.get(run) not in kept}

    @property
    def _spared(self) -> frozenset[str]:
        recalls = self._renewed.plan.recalls if self._renewed is not None else ()
        return spared(self._refused_of, recalls)

    async def _ledger_view(self) -> LedgerView:
        at_s = self._cluster_state.clock.now_s()
        return await asyncio.to_thread(ledger_view_now, self._ledger, self._settings, at_s)

    def _standing_still(self) -> tuple[Mapping[Queued, float], Mapping[int, float]]:
        """Since when each waiting job could have started, and until when jobs go first, by the
        monotonic clock, as of the last look: it says nothing of what Slurm has started since.
        """
        before, seen = self._still_since_s, self._cluster_state
        limits, now_s = seen.quotas.limits, seen.looked_monotonic_s
        by_holder = self._by_holder(seen.quota_jobs)
        since_s = standing_still(
            before, by_holder, seen.nodes, limits, partitions=self._partitions, now_s=now_s
        )
        first_s = first_until_s(seen.first_until_s, since_s, by_holder, limits, now_s)
        return since_s, first_s

    def _barred(
        self,
        ledger_view: LedgerView,
        jobs: tuple[JobView, ...],
        associations: tuple[Association, ...],
    ) -> Barred:
        settings, before = self._settings, self._cluster_state.barred
        by_holder, now_s = self._by_holder(jobs), ledger_view.now_s
        rows = [
            association
            for association in associations
            if association.cluster == settings.cluster.name
        ]
        usable = frozenset(node.name for node in self._cluster_state.nodes if is_usable(node))
        barred_now = barred(before, by_holder, ledger_view.policy, rows, now_s=now_s, usable=usable)
        if barred_now.jobs.keys() - before.jobs.keys():
            report("quota_barred", jobs=len(barred_now.jobs), trials=barred_now.damped)
        return barred_now

    async def _lend(
        self, ledger_view: LedgerView, associations: tuple[Association, ...]
    ) -> LedgerView:
        """Renew loans and recalls by current demand, write them, and return the ledger's view with
        them.

        Nothing changes while the view of Slurm is incomplete.
        """
        if not self._cluster_state.view.complete:
            return ledger_view
        jobs = self._cluster_state.jobs
        self._cluster_state.bar(
            await asyncio.to_thread(self._barred, ledger_view, jobs, associations)
        )
        self._renewed = renewed = await asyncio.to_thread(
            renew, self._ledger, ledger_view, self._settings, self._seen(), self._planned
        )
        round_plan = renewed.plan
        self._written, self._to_requeue = renewed.after, round_plan.reclaim.requeues
        if set(round_plan.loans) != set(renewed.before.loans):
            lent = sum(loan.amount_millislices for loan in round_plan.loans)
            report("lent", loans=len(round_plan.loans), slices=slices_text(lent))
        called = {
            (recall.lender, recall.borrower, recall.called_s) for recall in renewed.before.recalls
        }
        for recall in round_plan.recalls:
            if (recall.lender, recall.borrower, recall.called_s) not in called:
                amount = slices_text(recall.amount_millislices)
                report("recalled", lender=recall.lender, borrower=recall.borrower, slices=amount)
        return self._written

    def _imagine(self, ledger_view: LedgerView) -> ImaginedRound:
        """Plan a round as if those before had been carried out, and write nothing."""
        policy, windows = ledger_view.policy, ledger_view.windows
        loans = loosely_within(policy, windows, self._imagined)
        inputs = world_of(replace(ledger_view, loans=loans), self._settings, self._seen())
        self._imagined = plan(inputs).loans
        return imagined(inputs, self._imagined)

    def _by_holder(self, jobs: tuple[JobView, ...]) -> JobsByHolder:
        """The jobs, classified once a look; what did not change stays classified."""
        as_shown = jobs is self._cluster_state.jobs
        of, classified = self._classified[as_shown]
        if jobs is not of:
            self._classified[as_shown] = jobs, classified.at_look(jobs, self._partitions)
        return self._classified[as_shown][1]

    def _seen(self) -> SlurmView:
        seen, requeues = self._cluster_state, self._cluster_state.requeues
        looked_s, jobs = seen.looked_monotonic_s, seen.quota_jobs
        requeues.follow(jobs, looked_s)
        config = {} if self._conf is None else self._conf.config
        wanting = kept_back_waiting(jobs, self._released_soon())
        if wanting is not jobs:
            self._wanting = wanting = as_known(self._wanting, wanting)
        return SlurmView(
            wanting,
            seen.nodes,
            seen.view.services,
            evicting=seen.evictions.ending | requeues.ending(looked_s),
            lately=self._held_lately(),
            stuck=stuck(self._still_since_s, time.monotonic()),
            may_requeue=requeueable(
                jobs,
                self._qos,
                config,
                grace_s=self._settings.lending.grace_s,
                now_s=seen.clock.now_s(),
                refused=requeues.refused,
                spared=self._spared,
            ),
            kill_wait_s=kill_wait_s(config),
            by_holder=self._by_holder(wanting),
        )

    def _released_soon(self) -> Mapping[int, ReleasedSoon]:
        """The slots that quota kept back and that have room by this look, by array job id.

        None counts that waits for a lender, and none while the launcher is silent: nobody would
        release it, and what is lent for it would lie idle.
        """
        seen = self._cluster_state
        if not any(seen.kept_back.values()) or time.monotonic() - seen.heard_s > _SILENT_S:
            return {}
        held, most = self._by_holder(seen.jobs).held, seen.quotas.highest_limits
        # Mostly a tenant holds all that it may: then its runs need not be counted.
        services = [
            service
            for service in seen.view.services
            if seen.kept_back.get(service.array_job_id)
            and not seen.evictions.waits(tenant := service.tenant)
            and held.by_tenant.get(tenant, 0) + service.cost_millislices <= most.get(tenant, 0)
        ]

        def room_of(service: ServiceView) -> TenantCapacity | None:
            tenant = service.tenant
            places = (runs for place, runs in held.places.items() if holder(*place) == tenant)
            jobs = [run.job for runs in places for run in runs]
            alike = [other for other in seen.view.services if other.tenant == tenant]
            # In other modes loans are imagined, too.
            return seen.quotas.room(service, jobs, alike, borrows=True)

        return released_soon(services, seen.kept_back, room_of)

    @property
    def _compiles(self) -> bool:
        """Whether this daemon compiles; if not, another daemon does, or none."""
        return self._settings.daemon.mode == "enforce" and self._led

    @property
    def _imagines(self) -> bool:
        """Whether this daemon says what it would lend: it would compile, but for its mode."""
        state = self._cluster_state
        stays = self._settings.daemon.mode != "enforce" and not state.is_uninstalled
        return stays and self._led and state.view.complete

    @property
    def _lends(self) -> bool:
        """Whether this daemon lends; on an incomplete view it lends and takes back nothing."""
        return self._compiles and self._cluster_state.view.complete

    @property
    def _partitions(self) -> frozenset[str]:
        return frozenset(self._settings.cluster.partitions)

    def _report(self, compiled: Compiled) -> None:
        for change in compiled.changes:
            report("limit_set", sacctmgr=" ".join(change))
        for refused, words in compiled.refused.items():
            warn("limit_refused", sacctmgr=" ".join(refused), why=words)
        for difference in compiled.waits:
            report("limit_waits", limit=difference.text)
        for text in compiled.warnings:
            if text not in self._warned:
                warn("limits_odd", text=text)
        self._warned = frozenset(compiled.warnings)
        self._cluster_state.quotas.changed_by_hand += len(compiled.out_of_band)

    async def see_accounts(self) -> None:
        """Look at the accounts of Slurm's users again: one was refused, and may be added just now.

        Does nothing for a while after such a look; if slurmdbd gives no answer, all stays as it is.
        Callers that come during a look wait for its end, and make none of their own.
        """
        async with self._seeing:
            began_s = time.monotonic()
            if began_s < self._see_again_s:
                return
            try:
                with suppress(UnreachableError, OutsideError):
                    accounts = await self._accounts(await self._slurm.associations())
                    self._cluster_state.set_accounts(accounts)
            finally:
                ended_s = time.monotonic()
                pause_s = max(_ACCOUNTS_S, REST * (ended_s - began_s))
                self._see_again_s = ended_s + pause_s

    async def _publish(self, ledger_view: LedgerView, associations: Iterable[Association]) -> None:
        accounts = await self._accounts(associations)
        quotas = self._cluster_state.quotas
        quotas.left_millislice_s = left_millislice_s(ledger_view)
        quotas.loans, quotas.recalls = ledger_view.loans, ledger_view.recalls
        self._cluster_state.set_policy(ledger_view.policy, accounts, ledger_view.highest)

    async def _accounts(
        self, associations: Iterable[Association]
    ) -> Mapping[int, Mapping[str, frozenset[str]]]:
        associations = tuple(associations)
        if members := _accounts_by_user(associations):
            parents = {row.account: row.parent for row in associations if not row.user}
            self._cluster_state.set_members(members, parents)
            await self._see_coordinators()
        named = frozenset(self._settings.qos)
        ours = [
            association
            for association in associations
            if association.partition in {"", *self._partitions}
        ]
        return await asyncio.to_thread(_accounts_by_uid, ours, named)

    async def _see_coordinators(self) -> None:
        """Look at the coordinators of Slurm's accounts, once a minute.

        Without slurmdbd all stays as it is: nobody becomes a manager, and nobody ceases to be one.
        """
        if time.monotonic() < self._coordinators_due_s:
            return
        self._coordinators_due_s = time.monotonic() + _COORDINATORS_S
        with suppress(UnreachableError, OutsideError):
            if coordinators := await self._slurm.coordinators():
                self._cluster_state.set_coordinators(coordinators)

    async def _associations_or_none(self) -> tuple[Association, ...]:
        """Slurm's associations; empty without slurmdbd: then only Slurm checks which user belongs
        to which account.
        """
        try:
            return await self._slurm.associations()
        except (UnreachableError, OutsideError):
            return ()


def _still(before: RoundPlan, now: RoundPlan) -> RoundPlan:
    """The plan ``before``, by which only those runs go that would go ``now``, too."""
    going = before.reclaim.victims.items()
    victims = {run: why for run, why in going if run in now.reclaim.victims}
    over = {name: min(amount, now.over.get(name, 0)) for name, amount in before.over.items()}
    return replace(before, reclaim=replace(before.reclaim, victims=victims), over=over)


def _rested_s(began_s: float) -> float:
    """When a plan that began at ``began_s`` and ends now may be made again, by the monotonic clock.

    At once if it took at most ``_QUICK_S``.
    """
    ended_s = time.monotonic()
    took_s = ended_s - began_s
    return ended_s + (min(took_s, _LONGEST_REST_S) if took_s > _QUICK_S else 0.0)


def _accounts_by_uid(
    associations: Iterable[Association], named: frozenset[str]
) -> Mapping[int, Mapping[str, frozenset[str]]]:
    """Accounts of each user that this host knows, by uid, with those QOS of ``named`` that the user
    may use in each; reads the user database.
    """
    accounts: dict[str, dict[str, frozenset[str]]] = {}
    for association in associations:
        if association.user:
            own = accounts.setdefault(association.user, {})
            own[association.account] = own.get(association.account, _NO_QOS) | (
                association.qos & named
            )
    uids = ((_uid(user), own) for user, own in accounts.items())
    return {uid: own for uid, own in uids if uid is not None}


def _accounts_by_user(associations: Iterable[Association]) -> Mapping[str, frozenset[str]]:
    """Accounts of each user, whether this host knows the user or not."""
    accounts: dict[str, set[str]] = {}
    for association in associations:
        if association.user:
            accounts.setdefault(association.user, set()).add(association.account)
    return {user: frozenset(own) for user, own in accounts.items()}


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
