"""Collects what was decided and what could be lent, and adds it to the ledger every few seconds.

What was collected since is lost with the daemon: some seconds' worth.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from slicewise.cluster.runtime.user_names import user_name
from slicewise.slurm_plugin.admission_server.pipe import GpuVerdict
from slicewise.slurm_plugin.common.steady_clock import SteadyClock
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.observations import (
    DAY_S,
    LentBetween,
    Observations,
    QuotaUse,
    Submissions,
    day_of,
)
from slicewise.slurm_plugin.rules.round.what_if import ImaginedRound, loan_sums, quota_sums

_EVERY_S = 5.0
KINDS_A_DAY = 5000
"""Kinds of submissions that are told apart in a day. Users choose some of the words in them, so the
others are summed without account, user and type."""
OTHERS = "(others)"

_Kind = tuple[int, str, str, int, str, str, bool]
"""Day, mode, tenant, uid, code, GPU type, whether it borrows."""
_NO_UID = -1


class ObservationLoop:
    """Sums in memory, for one event loop's thread; the ledger gets them in a thread of its own."""

    def __init__(self, ledger: Ledger, clock: SteadyClock, kept_days: int) -> None:
        self._ledger = ledger
        self._clock = clock
        self._kept_days = kept_days
        self._kinds: dict[_Kind, Counter[str]] = defaultdict(Counter)
        self._told_apart: dict[int, set[_Kind]] = {}
        self._loans: dict[tuple[int, str, str], Counter[str]] = defaultdict(Counter)
        self._quota: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
        self._round: ImaginedRound | None = None
        self._due_s = 0.0

    def decided(self, verdict: GpuVerdict, mode: str, uid: int, at_s: float) -> None:
        """Count a submission that asked for GPUs."""
        kind = self._kind(verdict, mode, uid, day_of(at_s))
        self._kinds[kind].update(
            submissions=1,
            moved_qos=int(verdict.is_qos_moved),
            moved_type=int(verdict.is_type_chosen),
            asked_millislices=verdict.cost_millislices,
        )

    def imagined(self, now: ImaginedRound) -> None:
        """Count what was lent since the round before, had both been carried out."""
        for lent in loan_sums(self._round, now):
            self._loans[lent.day_s, lent.lender, lent.borrower].update(
                lent_millislice_s=lent.lent_millislice_s,
                recalls=lent.recalls,
                recalled_millislices=lent.recalled_millislices,
            )
        for use in quota_sums(self._round, now):
            self._quota[use.day_s, use.tenant].update(
                seconds=use.seconds,
                guaranteed_millislice_s=use.guaranteed_millislice_s,
                idle_millislice_s=use.idle_millislice_s,
                idle_wanted_millislice_s=use.idle_wanted_millislice_s,
                wanted_millislice_s=use.wanted_millislice_s,
            )
        self._round = now

    async def turn(self) -> None:
        """Add what was collected to the ledger; after a failure it stays for the next turn.

        Where the answer to a write was lost, the sums may be added twice.
        """
        began_s = time.monotonic()
        if began_s < self._due_s or not (self._kinds or self._loans or self._quota):
            return
        self._due_s = began_s + _EVERY_S
        kinds, loans, quota = self._kinds, self._loans, self._quota
        self._kinds, self._loans = defaultdict(Counter), defaultdict(Counter)
        self._quota = defaultdict(Counter)
        try:
            await asyncio.to_thread(self._write, kinds, loans, quota)
        except BaseException:
            for ours, theirs in (
                (self._kinds, kinds),
                (self._loans, loans),
                (self._quota, quota),
            ):
                _merge(ours, theirs)  # type: ignore[arg-type]
            raise

    def _write(
        self,
        kinds: Mapping[_Kind, Counter[str]],
        loans: Mapping[tuple[int, str, str], Counter[str]],
        quota: Mapping[tuple[int, str], Counter[str]],
    ) -> None:
        oldest_s = int(self._clock.shown_s) - self._kept_days * DAY_S
        # Two uids of one name are one row: PostgreSQL can't change a row twice in a statement.
        named: dict[tuple[object, ...], Submissions] = {}
        for (day_s, mode, tenant, uid, *rest), sums in kinds.items():
            user = OTHERS if uid == _NO_UID else user_name(uid)
            submissions = Submissions(day_s, mode, tenant, user, *rest, *_all(sums, _OF_KINDS))  # type: ignore[arg-type]
            key = (day_s, mode, tenant, user, *rest)
            named[key] = _together(named[key], submissions) if key in named else submissions
        observations = Observations(
            tuple(named.values()),
            tuple(LentBetween(*key, *_all(sums, _OF_LOANS)) for key, sums in loans.items()),
            tuple(QuotaUse(*key, *_all(sums, _OF_QUOTA)) for key, sums in quota.items()),
        )
        self._ledger.observations.add(observations, oldest_s)

    def _kind(self, verdict: GpuVerdict, mode: str, uid: int, day_s: int) -> _Kind:
        """Return the kind, or that of all others once a day has ``KINDS_A_DAY``."""
        kind = (
            *(day_s, mode, verdict.tenant, uid),
            *(verdict.code, verdict.gpu_type, verdict.is_borrowed),
        )
        kinds_today = self._told_apart.get(day_s)
        if kinds_today is None:
            self._told_apart = {day_s: (kinds_today := set())}
        if kind in kinds_today or len(kinds_today) < KINDS_A_DAY:
            kinds_today.add(kind)
            return kind
        return (day_s, mode, OTHERS, _NO_UID, verdict.code, OTHERS, verdict.is_borrowed)


_OF_KINDS = ("submissions", "moved_qos", "moved_type", "asked_millislices")
_OF_LOANS = ("lent_millislice_s", "recalls", "recalled_millislices")
_OF_QUOTA = (
    *("seconds", "guaranteed_millislice_s"),
    *("idle_millislice_s", "idle_wanted_millislice_s", "wanted_millislice_s"),
)


def _all(sums: Counter[str], names: tuple[str, ...]) -> list[int]:
    return [sums[name] for name in names]


def _together(submissions: Submissions, other: Submissions) -> Submissions:
    sums = {name: getattr(submissions, name) + getattr(other, name) for name in _OF_KINDS}
    return replace(submissions, **sums)


def _merge(ours: dict[object, Counter[str]], theirs: Mapping[object, Counter[str]]) -> None:
    for key, sums in theirs.items():
        ours[key].update(sums)
