"""The loop from Slurm to the ledger: charges runs and rolls budgets over; no other loop waits for
it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import JobView, RunRecord
from slicewise.cluster.language.slurm.interface import SlurmAccounting
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report, report_failure, warn
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import left_tokens
from slicewise.slurm_plugin.quota_cycle.post_charges import Posted, post
from slicewise.slurm_plugin.quota_cycle.rollover import (
    roll_over_budgets,
    roll_over_token_budgets,
)
from slicewise.slurm_plugin.quota_cycle.share_hours import share_hours, share_pools
from slicewise.slurm_plugin.rules.accounting.charging import (
    ACCOUNTING_DELAY_S,
    Rates,
    charge,
    known_end_s,
    next_watermark_s,
)
from slicewise.slurm_plugin.rules.accounting.lost_runs import LostRun, lost_ends, lost_runs, unmoved
from slicewise.slurm_plugin.rules.accounting.types import Charge, RunKey
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_SETTLE_S = 5.0
"""Seconds between queries of accounting while no run is known to have ended."""

_SEAL_S = 60.0
"""Seconds between seals while this daemon books nothing: other processes may have booked."""

_SHARE_S = 60.0
"""Seconds between two looks for hours of shared services that are over."""

_LATE_S = 60
"""Seconds after a run is gone during which every turn asks accounting for its end. After that
accounting is asked only every ``_SETTLE_S`` seconds."""

_KEPT_AFTER_S, _KEEP_S = 60.0, 60.0
"""Seconds after which a run that is gone is kept in the ledger for the next daemon, as accounting
shows most ends sooner; and seconds between two writes of the same runs."""

HELD_BACK_S = 12 * 3600
"""Seconds for which a refused charge of an ended run holds the watermark back, so that accounting
shows the run again. Then the charge is reported and given up: otherwise a single refused charge
would make each query read all that accounting ever had."""

_MOST_TOLD = 16
"""Most log lines in one turn about refused charges, and about GPUs without a type."""


def rates_of(settings: Settings, policy: Policy) -> Rates:
    """The rates of this cluster: costs, managed partitions, and which tenant pays for which."""
    return Rates(
        settings.cluster.name,
        frozenset(settings.cluster.partitions),
        settings.costs,
        payers(policy),
        settings.ledger.node_failure,
        settings.billing,
    )


@dataclass(frozen=True)
class _Refused:
    """A charge that the ledger refused.

    Attributes:
        since_s: when the ledger first refused it, by the monotonic clock.
        end_s: when its run ended, Unix seconds; None while the run is not known to have ended.
    """

    since_s: float
    end_s: int | None

    @property
    def is_given_up(self) -> bool:
        return time.monotonic() - self.since_s >= HELD_BACK_S


class ChargingLoop:
    """Keeps the ledger in line with Slurm and its accounting.

    A charge that the ledger refuses is decided again at each turn, while Slurm, accounting or the
    ledger's reservations show its run. The watermark waits for the charge, so that accounting goes
    on showing it, but no longer than ``HELD_BACK_S``.
    """

    def __init__(
        self,
        settings: Settings,
        slurm: SlurmAccounting,
        ledger: Ledger,
        cluster_state: ClusterState,
    ) -> None:
        self._settings = settings
        self._slurm = slurm
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._policy: Policy = {}
        self._change_id = -1
        self._settle_due_s = 0.0
        self._has_booked = False
        self._seal_due_s = 0.0
        self._share_due_s = 0.0
        self._not_shared: frozenset[RunKey] = frozenset()
        self._lost_runs: Mapping[RunKey, LostRun] | None = None
        self._kept: frozenset[RunKey] = frozenset()
        self._keep_due_s = 0.0
        self._answering_since_s: float | None = None
        self._is_unreachable = False
        self._is_ahead = False
        self._refused: Mapping[RunKey, _Refused] = {}
        self._unpriced: frozenset[str] = frozenset()
        self._untyped: frozenset[RunKey] = frozenset()

    async def start(self) -> None:
        """Check the ledger's version, and set the watermark if there is none: from now on every
        run's end is charged. Raises what the ledger raises.
        """
        await asyncio.to_thread(self._ledger.require_current)
        await asyncio.to_thread(self._ledger.charges.accounted_until_s)

    async def turn(self) -> None:
        """Charge what Slurm shows, divide what is shared, then begin the budgets' periods that are
        due.
        """
        await self._read_policy()
        state = self._cluster_state
        # The earliest of all clocks: a period or watermark that is late does no harm.
        jobs, looked_s = state.jobs, int(min(state.looked_s, state.slurm_s))
        safe_s = min(looked_s, int(state.view.observed_s))
        await self._charge(jobs, looked_s, safe_s)
        if time.monotonic() >= self._share_due_s:
            await self._share(jobs, safe_s)
        # While accounting did not answer yet, somebody may have set another budget: no later turn
        # corrects a period that has begun with the one before. The ledger refuses to begin it if
        # that happens from here on.
        await self._read_policy()
        zone = self._settings.ledger.time_zone
        rollovers = await asyncio.to_thread(
            roll_over_budgets,
            self._ledger,
            self._policy,
            zone,
            jobs,
            safe_s,
            change_id=self._change_id,
        )
        of_tokens = await asyncio.to_thread(
            roll_over_token_budgets,
            self._ledger,
            self._policy,
            zone,
            safe_s,
            change_id=self._change_id,
        )
        self._cluster_state.quotas.left_tokens = await asyncio.to_thread(
            left_tokens, self._ledger, self._policy
        )
        rollovers = (*rollovers, *of_tokens)
        for roll in rollovers:
            report(
                "budget_rolled",
                tenant=roll.tenant,
                period=roll.reason,
                meter=roll.meter,
                amount=roll.amount,
            )
        if self._has_booked or rollovers or time.monotonic() >= self._seal_due_s:
            await self._seal()

    async def stand_by(self) -> None:
        """Forget what was left of tokens: another daemon books them."""
        self._cluster_state.quotas.left_tokens = {}

    async def _share(self, jobs: tuple[JobView, ...], safe_s: int) -> None:
        """Divide the hours of services that are over: among tenants, then in pools."""
        self._share_due_s = time.monotonic() + _SHARE_S
        settings = self._settings.ledger
        args = self._ledger, self._policy, settings.idle_time, jobs, safe_s
        zone, weights = settings.time_zone, settings.output_weights
        shared = await asyncio.to_thread(share_hours, *args, zone=zone, output_weights=weights)
        if shared.booked:
            self._has_booked = True
            report("hours_shared", hours=shared.booked)
        for key in sorted(shared.refused.keys() - self._not_shared)[:_MOST_TOLD]:
            error = shared.refused[key]
            warn("share_refused", job_id=key.job_id, start_s=key.start_s, error=error)
        self._not_shared = frozenset(shared.refused)
        pooled = await asyncio.to_thread(share_pools, self._ledger, safe_s, zone=zone)
        if pooled:
            report("pools_shared", hours=pooled)

    async def _read_policy(self) -> None:
        change_id = await asyncio.to_thread(self._ledger.tenants.change_id)
        if change_id != self._change_id:
            self._policy = await asyncio.to_thread(self._ledger.tenants.policy)
            self._change_id = change_id

    async def _seal(self) -> None:
        """Seal what was booked, by this process or another.

        A failure to seal does not keep runs from being charged. After an upgrade the daemon's role
        may seal only once ``slicewise ledger db grant`` was run again.
        """
        self._has_booked, self._seal_due_s = False, time.monotonic() + _SEAL_S
        try:
            await asyncio.to_thread(self._ledger.charges.seal)
        except OutsideError as error:
            report_failure("seal_failed", error)

    async def _charge(self, jobs: tuple[JobView, ...], looked_s: int, safe_s: int) -> None:
        """Reserve for running jobs, settle ended ones.

        ``looked_s`` is by the steady clock, which follows late where the host's clock was set, and
        no later than slurmctld's; ``safe_s`` is no later than that or the host's clock. Waits are
        measured by the monotonic clock.
        """
        monotonic_s = self._cluster_state.looked_monotonic_s
        reservations = await asyncio.to_thread(self._ledger.charges.open_reservations)
        since_s = await self._since_s(safe_s)
        before = await self._lost_before(monotonic_s)
        gone = lost_runs(before, looked_s, monotonic_s, jobs, reservations)
        self._lost_runs = gone
        await self._keep(gone, monotonic_s)
        records = await self._records(since_s, monotonic_s, gone)
        # Accounting has caught up with slurmctld once it has answered without a break for long
        # enough.
        answered_s = monotonic_s - (self._answering_since_s or monotonic_s)
        has_caught_up = records is not None and answered_s >= ACCOUNTING_DELAY_S
        lost = lost_ends(gone, monotonic_s) if has_caught_up else {}
        rates = rates_of(self._settings, self._policy)
        shown = unmoved(records or (), rates.cluster, gone)
        decided = charge(rates, jobs, shown, reservations, lost)
        if decided.charges:
            posted = await asyncio.to_thread(post, self._ledger, decided.charges)
            if posted.booked:
                self._has_booked = True
                report("charged", runs=len(posted.booked))
            self._follow_refused(decided.charges, posted, shows_all=records is not None)
        elif records is not None:
            self._refused = {}
        for odd in decided.observations:
            warn("charge_odd", job_id=odd.key.job_id, text=odd.text)
        for kind in sorted(decided.unpriced - self._unpriced):
            warn("gpu_type_without_cost", type=kind)
        # Each type is reported once, not each time that one of its jobs runs.
        self._unpriced |= decided.unpriced
        for key in sorted(decided.untyped - self._untyped)[:_MOST_TOLD]:
            warn("gpus_without_type", job_id=key.job_id, start_s=key.start_s)
        # Without accounting's answer, ended runs are not among them.
        self._untyped = decided.untyped if records is not None else self._untyped | decided.untyped
        if has_caught_up:
            await self._move_watermark(since_s, safe_s, jobs)

    def _follow_refused(
        self, charges: Sequence[Charge], posted: Posted, *, shows_all: bool
    ) -> None:
        """Report each newly refused charge once; of more than ``_MOST_TOLD``, the rest only as a
        number.

        Without accounting's answer (``shows_all`` false) charges that only accounting knows were
        not tried again, so they are kept.
        """
        before, now_s = self._refused, time.monotonic()
        kept = {} if shows_all else {k: v for k, v in before.items() if k not in posted.booked}
        ends_s = {due_charge.run.key: known_end_s(due_charge) for due_charge in charges}
        since_s = {key: before[key].since_s if key in before else now_s for key in posted.refused}
        self._refused = kept | {key: _Refused(since_s[key], ends_s[key]) for key in posted.refused}
        new = sorted(posted.refused.keys() - before.keys())
        for key in new[:_MOST_TOLD]:
            error = posted.refused[key]
            warn("charge_refused", job_id=key.job_id, start_s=key.start_s, error=error)
        if new[_MOST_TOLD:]:
            warn("charges_refused", more=len(new[_MOST_TOLD:]))

    async def _since_s(self, safe_s: int) -> int:
        """Unix seconds from which accounting may show ends that are not in the ledger."""
        mark_s = await asyncio.to_thread(self._ledger.charges.accounted_until_s)
        if mark_s <= safe_s:
            self._is_ahead = False
            return mark_s
        # The watermark was written by a clock that was ahead: charging must not rest until then.
        if not self._is_ahead:
            warn("watermark_ahead", ahead_s=mark_s - safe_s)
        self._is_ahead = True
        return safe_s - ACCOUNTING_DELAY_S

    async def _lost_before(self, monotonic_s: float) -> Mapping[RunKey, LostRun]:
        """The runs that were gone at the last turn, in another daemon's life perhaps."""
        if self._lost_runs is None:
            lost = await asyncio.to_thread(self._ledger.charges.lost_runs, monotonic_s)
            self._kept = frozenset(lost)
            return lost
        return self._lost_runs

    async def _keep(self, gone: Mapping[RunKey, LostRun], monotonic_s: float) -> None:
        """Keep in the ledger what the next daemon could not see any more.

        Otherwise a daemon that starts anew every hour would never take a run for lost.
        """
        kept = {
            key: lost for key, lost in gone.items() if monotonic_s - lost.since_s > _KEPT_AFTER_S
        }
        if self._kept == kept.keys() and (not kept or monotonic_s < self._keep_due_s):
            return
        await asyncio.to_thread(self._ledger.charges.keep_lost_runs, kept, monotonic_s)
        self._kept, self._keep_due_s = frozenset(kept), monotonic_s + _KEEP_S

    async def _records(
        self, since_s: int, monotonic_s: float, gone: Mapping[RunKey, LostRun]
    ) -> tuple[RunRecord, ...] | None:
        """Accounting's runs since ``since_s``, if some may be new; None if not, or without an
        answer.
        """
        ended = any(monotonic_s - run.since_s < _LATE_S for run in gone.values())
        if not ended and time.monotonic() < self._settle_due_s:
            return None
        try:
            records = await self._slurm.runs(since_s)
        except (UnreachableError, OutsideError) as error:
            if not self._is_unreachable:
                report_failure("accounting_unreachable", error)
            self._is_unreachable = True
            self._answering_since_s = None
            return None
        if self._is_unreachable:
            report("accounting_answers")
        self._is_unreachable = False
        if self._answering_since_s is None:
            self._answering_since_s = monotonic_s
        self._settle_due_s = time.monotonic() + _SETTLE_S
        return records

    async def _move_watermark(self, since_s: int, safe_s: int, jobs: tuple[JobView, ...]) -> None:
        open_now = await asyncio.to_thread(self._ledger.charges.open_reservations)
        given_up = {key for key, refused in self._refused.items() if refused.is_given_up}
        still_open = [reservation for reservation in open_now if reservation.key not in given_up]
        ends_s = {
            key: refused.end_s
            for key, refused in self._refused.items()
            if refused.end_s is not None
        }
        waits_for = [end_s for key, end_s in ends_s.items() if key not in given_up]
        until_s = next_watermark_s(since_s, safe_s, jobs, still_open, waits_for)
        if until_s > since_s:
            await asyncio.to_thread(self._ledger.charges.set_accounted_until_s, until_s)
            for key in sorted(
                key for key in given_up & ends_s.keys() if since_s < ends_s[key] <= until_s
            ):
                warn("charge_given_up", job_id=key.job_id, start_s=key.start_s, end_s=ends_s[key])
