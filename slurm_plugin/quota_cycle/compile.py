"""Brings Slurm's limits to what the ledger says: gathers, decides, applies."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.findings import Finding, warning
from slicewise.cluster.language.jobs import JobView, NodeView, as_known
from slicewise.cluster.language.slurm.interface import Association, Changed, Qos, Slurm, SlurmReader
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.runtime.together import together
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import warn
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.common.qos_names import is_marked, qos_name, tenant_of
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED, require_installed
from slicewise.slurm_plugin.rules.limits.budget_parts import drawn_on
from slicewise.slurm_plugin.rules.limits.changes import (
    LimitChange,
    Unit,
    can_be_named,
    stages,
    unit,
    units_of,
)
from slicewise.slurm_plugin.rules.limits.desired import (
    BILLING,
    DEFAULT_QOS,
    QOS_LIST,
    Allowed,
    DesiredLimits,
    Difference,
    SlurmLimits,
    differences,
)
from slicewise.slurm_plugin.rules.limits.drift import (
    OutOfBandChange,
    adopted_nominal,
    noted,
    out_of_band,
    to_remember,
)
from slicewise.slurm_plugin.rules.limits.growth import (
    free,
    growing,
    overdrawn,
    overtaken,
    shrinking,
    unfunded,
    without,
)
from slicewise.slurm_plugin.rules.limits.warnings import (
    crowding_findings,
    limit_findings,
    unknown_qos,
    unnamed_findings,
)
from slicewise.slurm_plugin.rules.quota.standings import QosUse, Standing
from slicewise.slurm_plugin.rules.quota.tenants import effective_nominal
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Policy, TenantUpdate
from slicewise.slurm_plugin.rules.round.wanted import Conf, PlannedFor, SlurmNow, wanted_limits
from slicewise.slurm_plugin.rules.round.world import SlurmView, World, world_of
from slicewise.slurm_plugin.rules.slurm_config.isolation import isolation_findings
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import (
    closed_to_qos,
    conf_findings,
    price_findings,
)

_Seen = TypeVar("_Seen")

_PATIENCE_S, _PAUSE_S = 60.0, 0.1
"""Seconds to wait for another compilation to end (longer than sacctmgr may take for a few changes),
and seconds between tries."""
_ROUNDS = 8
"""Most rounds of a compilation. A change may reveal further differences (a child inherits a value),
which the next round finds; the last round must find none."""
_NEWS_S = _PATIENCE_S / 3
"""Seconds after which a compilation asks the ledger again whether Slicewise is being uninstalled.
An uninstall records that in the ledger, and then waits for this compilation to end, which takes a
few seconds unless Slurm is slow."""


_UNINSTALLED = warning(
    UNINSTALLED.code, UNINSTALLED.message.removesuffix("."), advice=UNINSTALLED.hint
)


@dataclass(frozen=True)
class LimitComparison:
    """Ledger and Slurm side by side.

    Attributes:
        ledger_view: the ledger.
        inputs: what was seen at the time of the look.
        planned_use: what jobs hold in each QOS, where the limits are wanted for that.
        differences: settings that Slurm does not have as the ledger says.
        out_of_band: differences that were made outside Slicewise since it last set them.
        findings: what keeps the limits from holding, or tenants apart.
        is_uninstalled: whether Slicewise was uninstalled, so that no difference may be applied.
    """

    ledger_view: LedgerView
    inputs: World
    planned_use: QosUse
    allowed: Allowed
    associations: tuple[Association, ...]
    found: SlurmLimits
    wanted: DesiredLimits
    differences: tuple[Difference, ...]
    out_of_band: tuple[OutOfBandChange, ...]
    findings: tuple[Finding, ...]
    is_uninstalled: bool

    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings as text, one line each."""
        return tuple(finding.text for finding in self.findings)


@dataclass(frozen=True)
class Compiled:
    """The result of a compilation: what Slurm now has.

    Attributes:
        ledger_view: the ledger that was compiled.
        qos: the QOS as Slurm has them now.
        changes: the sacctmgr commands that Slurm took; none if it had everything already.
        out_of_band: settings changed outside Slicewise, now put back or adopted.
        refused: the commands that Slurm refused, with its own words.
        refused_of: the tenants whose settings those are, or others that Slurm did not make.
        waits: limits left to the next compilation, because jobs meanwhile took the quota by which
            the limits were to grow, or Slurm did not shrink others. While there are any, the policy
            is not in force.
    """

    ledger_view: LedgerView
    policy: Policy
    standings: dict[str, Standing]
    run_minutes: dict[str, int]
    associations: tuple[Association, ...]
    qos: tuple[Qos, ...]
    changes: tuple[LimitChange, ...]
    out_of_band: tuple[OutOfBandChange, ...]
    warnings: tuple[str, ...]
    refused: Mapping[LimitChange, str] = field(default_factory=dict)
    refused_of: frozenset[str] = frozenset()
    waits: tuple[Difference, ...] = ()


class LimitsUnsettledError(OutsideError):
    """SW-LIMITS-UNSETTLED: Slurm has not all limits of tenants, and all else is done.

    Attributes:
        compiled: what Slurm now has.
    """

    compiled: Compiled

    @classmethod
    def of(cls, message: str, compiled: Compiled) -> "LimitsUnsettledError":
        """With the hint that all have."""
        hint = "Something else may be changing them; look at sacctmgr show assoc, qos."
        error = cls(Code.LIMITS_UNSETTLED, message, hint)
        error.compiled = compiled
        return error


class LimitReader(SlurmReader, Protocol):
    """What Slurm has of limits, and what it counts for them."""

    async def associations(self) -> tuple[Association, ...]:
        """Every association of this cluster."""

    async def qos(self) -> tuple[Qos, ...]:
        """Every QOS of slurmdbd."""


async def slurm_now(
    slurm: LimitReader,
    jobs: tuple[JobView, ...] | None = None,
    nodes: tuple[NodeView, ...] | None = None,
    conf: Conf | None = None,
) -> SlurmNow:
    """Read from Slurm what is not given; ``jobs``, ``nodes`` and ``conf`` were read before.

    Raises what ``Slurm`` raises.
    """
    shown = SlurmNow(
        *await together(
            slurm.associations(),
            slurm.qos(),
            _given(conf) or _conf(slurm),
            _given(jobs) or slurm.jobs(),
            _given(nodes) or slurm.nodes(),
        )
    )
    return replace(shown, is_fresh=jobs is None)


async def _conf(slurm: SlurmReader) -> Conf:
    return Conf(*await together(slurm.config(), slurm.partitions()))


def _given(value: _Seen | None) -> Awaitable[_Seen] | None:
    async def at_once(seen: _Seen) -> _Seen:
        return seen

    return None if value is None else at_once(value)


async def _jobs_again(slurm: SlurmReader, shown: SlurmNow) -> SlurmNow:
    """Read the jobs again: some may have started meanwhile."""
    jobs = as_known(shown.jobs, await slurm.jobs())
    return replace(shown, jobs=jobs, is_fresh=True)


async def _again(
    slurm: Slurm, shown: SlurmNow, seen: LimitComparison, changed: Sequence[Difference]
) -> SlurmNow:
    """Read again what may have moved together with the ``changed`` differences of ``seen``.

    These are associations, where accounts changed (others inherit from them), and jobs, where
    limits shrank and others are to grow by that now.
    """
    if any(difference.key.entity == "account" for difference in changed):
        shown = replace(shown, associations=await slurm.associations())
    if shrinking(changed, seen.found) and growing(seen.differences, seen.found):
        shown = await _jobs_again(slurm, shown)
    return shown


def _after(shown: SlurmNow, changed: Changed) -> SlurmNow:
    """``shown`` with the QOS as a change left them; jobs may have started before the change."""
    qos = {row.name: row for row in (*shown.qos, *changed.qos)}
    return replace(shown, qos=tuple(qos.values()), is_fresh=False)


async def look(slurm: Slurm, ledger: Ledger, settings: Settings) -> LimitComparison:
    """Compare Slurm with the ledger, changing nothing. Raises what ``Slurm`` and ``Ledger`` do."""
    shown = await slurm_now(slurm)
    return compared(await asyncio.to_thread(ledger_view_now, ledger, settings), shown, settings)


def compared(
    ledger_view: LedgerView,
    shown: SlurmNow,
    settings: Settings,
    planned: LimitComparison | None = None,
    before: LimitComparison | None = None,
) -> LimitComparison:
    """Compare what Slurm has with what the ledger says.

    The limits are wanted for the current use, or for that of ``planned``, if given. What the
    comparison ``before`` has computed of the same jobs and nodes is taken from there.
    """
    config, partitions, cluster = shown.conf.config, shown.conf.partitions, settings.cluster
    nodes, managed = shown.nodes, frozenset(cluster.partitions)
    inputs = _inputs(ledger_view, settings, shown, before.inputs if before else shown.world)
    inputs = inputs.fitted_as(planned.inputs) if planned else inputs
    planned_use = planned.planned_use if planned else inputs.use
    wanted = wanted_limits(
        inputs,
        shown,
        cluster.name,
        settings.billing,
        PlannedFor(planned_use, planned.found.in_use) if planned else None,
    )
    allowed, slurm_limits, limits = wanted.allowed, wanted.found, wanted.limits
    is_out = is_uninstalled(ledger_view, shown.qos, settings)
    all_differing = differences(limits, slurm_limits)
    differing = tuple(difference for difference in all_differing if can_be_named(difference))
    unnamed = [difference for difference in all_differing if not can_be_named(difference)]
    return LimitComparison(
        allowed=allowed,
        ledger_view=ledger_view,
        inputs=inputs,
        planned_use=planned_use,
        associations=shown.associations,
        found=slurm_limits,
        wanted=limits,
        differences=differing,
        out_of_band=out_of_band(differing, ledger_view.known),
        is_uninstalled=is_out,
        findings=(
            *((_UNINSTALLED,) if is_out else ()),
            *limit_findings(allowed, slurm_limits),
            *unnamed_findings(unnamed),
            *unknown_qos(settings.qos, slurm_limits),
            *crowding_findings(allowed, slurm_limits, config.get("MaxJobCount", "")),
            *conf_findings(
                *(config, partitions, cluster.partitions, settings.costs, settings.billing),
                nodes=nodes,
            ),
            *price_findings(nodes, managed, settings.costs),
            *closed_to_qos(partitions, managed, limits.our_qos),
            *isolation_findings(config),
        ),
    )


def _inputs(
    ledger_view: LedgerView, settings: Settings, shown: SlurmNow, before: World | None
) -> World:
    """The inputs; all that has not changed since ``before`` is taken from there."""
    jobs, nodes = shown.quota_jobs, shown.nodes
    if before is None:
        return world_of(ledger_view, settings, SlurmView(jobs, nodes, ()))
    seen = replace(before.slurm_view, jobs=jobs, nodes=nodes)
    then = before.after(ledger_view.loans, ledger_view.recalls)
    if then.is_as(ledger_view, seen):
        return replace(then, ledger_view=ledger_view)
    by_holder = before.seen_jobs.at_look(jobs, before.rules.partitions)
    return world_of(ledger_view, settings, SlurmView(jobs, nodes, (), by_holder=by_holder))


def is_uninstalled(ledger_view: LedgerView, qos: Iterable[Qos], settings: Settings) -> bool:
    """Whether Slicewise was uninstalled: by the ledger, or by Slurm if the ledger was away then."""
    return ledger_view.is_uninstalled or is_marked((row.name for row in qos), settings.cluster.name)


async def compile_limits(slurm: Slurm, ledger: Ledger, settings: Settings) -> Compiled:
    """Wait for the turn to compile, then do ``compile_in_turn`` on a fresh look."""
    async with compile_turn(ledger):
        shown = await slurm_now(slurm)
        ledger_view = await asyncio.to_thread(ledger_view_now, ledger, settings)
        return await compile_in_turn(slurm, ledger, settings, shown, ledger_view)


async def compile_in_turn(
    slurm: Slurm, ledger: Ledger, settings: Settings, shown: SlurmNow, ledger_view: LedgerView
) -> Compiled:
    """Apply the differences in rounds, until none is left.

    The first round uses what Slurm has ``shown`` in this turn, others read what the one before
    changed. All use the same ``ledger_view``; later changes are for the next compilation.

    Limits of QOS grow, new ones from 0, only in a round that finds none to shrink, and on a look at
    jobs since the last change: a job may have started before a QOS shrank; none starts beyond its
    limit later. All later rounds keep the use of the first such look after a change, or limits
    would follow it for ever. Growth is left to the next compilation where jobs overtook it, or
    where Slurm does not shrink what is to be given up. What shrank grows back in this one.

    Changes made outside Slicewise are reported on stderr first, then adopted if the settings say
    so, else put back. Safe to repeat and to be killed at any point (``limits.drift``; what was to
    be adopted may then be put back). What Slurm refuses keeps no other change back. Raises what
    ``Slurm`` and ``Ledger`` raise, InvalidInputError (SW-UNINSTALLED) once Slicewise is
    uninstalled, and, when all else is done, LimitsUnsettledError if Slurm refuses a tenant's limit,
    or goes on showing another value than was just set.
    """
    applied: tuple[LimitChange, ...] = ()
    changed_out_of_band: tuple[OutOfBandChange, ...] = ()
    refused = _Refused()
    planned: LimitComparison | None = None
    before: LimitComparison | None = None
    sent: frozenset[Difference] = frozenset()
    heard_s = time.monotonic()
    for number in range(_ROUNDS):
        if time.monotonic() - heard_s > _NEWS_S:
            require_installed(await asyncio.to_thread(ledger.limits.is_uninstalled))
            heard_s = time.monotonic()
        while True:
            told = _told(
                slurm, ledger, settings, shown, ledger_view, planned=planned, before=before
            )
            ledger_view, shown, before, hands = await told
            seen, changed_out_of_band = before, changed_out_of_band + hands
            refused.note_ignored(limit for limit in seen.differences if limit in sent)
            sent = frozenset()
            left = _due(seen, refused)
            if shown.is_fresh or not _grows(left, seen.found):
                break
            shown = await _jobs_again(slurm, shown)
        planned = seen if number and shown.is_fresh else planned
        due = to_remember(
            seen.wanted.settings, (*seen.differences, *left), seen.found, ledger_view.known
        )
        # What Slurm shows by now is noted together with the rest, in one write.
        if due and (not left or any(difference.key in due for difference in left)):
            await asyncio.to_thread(ledger.limits.know, due)
            ledger_view = replace(ledger_view, known={**ledger_view.known, **due})
        if not left:
            break
        sent = frozenset(left)
        for stage in stages(left, seen.found, apart=refused.any):
            changed = await slurm.set_limits(stage)
            shown = _after(shown, changed)
            applied += tuple(change for change in stage if change not in changed.refused)
            if changed.refused and not refused.any:
                # What shrinks in the same command has not shrunk: nothing grows before that.
                refused.any, sent = True, frozenset()
                break
            refused.add(changed.refused, left, seen.found)
        shown = await _again(slurm, shown, seen, left)
    else:
        refused.add_unsettled(left)
    return _settled(_compiled(seen, applied, changed_out_of_band, refused, qos=shown.qos), refused)


def _settled(compiled: Compiled, refused: "_Refused") -> Compiled:
    if message := refused.unsettled(compiled.policy):
        raise LimitsUnsettledError.of(message, compiled)
    return compiled


@asynccontextmanager
async def compile_turn(ledger: Ledger) -> AsyncIterator[None]:
    """Hold the turn to compile, so that one process compiles at a time.

    Two compilations at the same time, on loans that change between them, would take each other's
    changes for changes made outside Slicewise. So would a compilation that uses what Slurm had
    before its turn. After ``_PATIENCE_S`` the turn begins in any case, since another compilation
    may hang.
    """
    lock = ledger.locks.compiling()
    until_s = time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < until_s:
            if await asyncio.to_thread(lock.hold):
                break
            await asyncio.sleep(_PAUSE_S)
        yield
    finally:
        lock.give_up()


async def _told(
    slurm: Slurm,
    ledger: Ledger,
    settings: Settings,
    shown: SlurmNow,
    ledger_view: LedgerView,
    *,
    planned: LimitComparison | None,
    before: LimitComparison | None,
) -> tuple[LedgerView, SlurmNow, LimitComparison, tuple[OutOfBandChange, ...]]:
    """Compare Slurm with the ledger, and handle the changes made outside Slicewise first.

    Returns the ledger's view and Slurm's state after that, their comparison, and those changes.
    """
    seen = compared(ledger_view, shown, settings, planned, before)
    require_installed(seen.is_uninstalled)
    if not seen.out_of_band:
        return ledger_view, shown, seen, ()
    # Another compilation may have been under way between the look at Slurm and at the ledger.
    associations, qos = await together(slurm.associations(), slurm.qos())
    shown = replace(shown, associations=associations, qos=qos)
    ledger_view = await _read_again(ledger, settings, ledger_view)
    seen = compared(ledger_view, shown, settings, planned)
    hands = seen.out_of_band
    if hands:
        ledger_view = await _with_hands(ledger, settings, seen)
        seen = compared(ledger_view, shown, settings, planned)
    return ledger_view, shown, seen, hands


async def _with_hands(ledger: Ledger, settings: Settings, seen: LimitComparison) -> LedgerView:
    """Report changes made outside Slicewise, adopt them if the settings say so; the ledger then.

    The ledger notes them first, so that no later compilation finds them again: a change that is
    adopted twice would be added twice.
    """
    _tell(seen.out_of_band)
    await asyncio.to_thread(ledger.limits.know, noted(seen.out_of_band, seen.ledger_view.known))
    if settings.ledger.by_hand == "adopt":
        await _adopt(ledger, seen)
    return await _read_again(ledger, settings, seen.ledger_view)


async def _read_again(ledger: Ledger, settings: Settings, ledger_view: LedgerView) -> LedgerView:
    """Read the ledger again, for the same moment."""
    return await asyncio.to_thread(ledger_view_now, ledger, settings, ledger_view.when.at_s)


def _due(seen: LimitComparison, refused: "_Refused") -> tuple[Difference, ...]:
    """The differences that can be applied now."""
    left = [difference for difference in seen.differences if unit(difference) not in refused.of]
    grow = growing(left, seen.found)
    if shrinking(left, seen.found):
        return without(frozenset(grow), left, seen.found)
    all_shrinking = shrinking(seen.differences, seen.found)
    stuck = [difference for difference in all_shrinking if unit(difference) in refused.of]
    policy = seen.allowed.policy
    billing = seen.found.billing
    waits = overtaken(policy, seen.wanted, seen.planned_use, seen.inputs.use, billing)
    room = free(seen.allowed.capacity_millislices, seen.wanted, seen.found)
    waits |= unfunded(stuck, grow, policy, seen.ledger_view.loans, room)
    waits |= overdrawn(stuck, drawn_on(policy, seen.allowed.run_minutes, policy))
    waiting = frozenset(difference for difference in grow if difference.key.name in waits)
    return without(waiting, left, seen.found)


def _grows(due: Iterable[Difference], slurm_limits: SlurmLimits) -> bool:
    """Whether a limit in ``due`` grows now. A QOS made before others shrank starts at 0."""
    due = tuple(due)
    return bool(growing(due, slurm_limits)) and not shrinking(due, slurm_limits)


class _Refused:
    """Changes that Slurm refuses, or accepts and does not make.

    At first one command changes several settings; after the first refusal each unit has its own.

    Attributes:
        any: whether anything was refused yet; from then on each unit has a command of its own.
        of: Slurm's words by the unit of the refused change; that unit is not tried again.
        changes: Slurm's words by the change that was refused.
    """

    def __init__(self) -> None:
        self.any = False
        self.of: dict[Unit, str] = {}
        self.changes: dict[LimitChange, str] = {}

    def add(
        self,
        refusals: Mapping[LimitChange, str],
        due: Sequence[Difference],
        slurm_limits: SlurmLimits,
    ) -> None:
        """Record the refusals of a stage of ``due`` in which each unit has a command of its own."""
        whose = units_of(due, slurm_limits) if refusals else {}
        for change, words in refusals.items():
            self.of[whose[change]] = words
            self.changes[change] = words

    def note_ignored(self, ignored: Iterable[Difference]) -> None:
        """Note differences that Slurm accepted in the last round, but still shows.

        Only limits of QOS count: no other change brings them about, as may happen with accounts.
        Once they are recorded, limits that waited for them wait no longer.
        """
        of_qos = [difference for difference in ignored if difference.key.entity == "qos"]
        if self.any:
            self.add_unsettled(of_qos)
        elif of_qos:
            self.any = True

    def add_unsettled(self, left: Iterable[Difference]) -> None:
        """Record that Slurm still shows other values for the differences that are ``left``."""
        for difference in left:
            now, wanted = difference.now or "nothing", difference.wanted or "nothing"
            words = f"sacctmgr sets {difference.key.field} to {wanted}, and Slurm still shows {now}"
            self.of.setdefault(unit(difference), words)

    def tenants(self, policy: Policy) -> frozenset[str]:
        """The tenants of what was refused; a QOS of no tenant is that of all."""
        tenants: set[str] = set()
        for kind, name, *_ in self.of:
            whose = tenant_of(name) if kind == "qos" else name
            tenants |= policy.keys() if whose is None else {whose}
        return frozenset(tenants & policy.keys())

    def unsettled(self, policy: Policy) -> str:
        """What is to be said of the first refused limit of a tenant's own; "" if there is none.

        A list or default of QOS does not count: a user's list below may be in the way, and that
        user may be one that can't be named.
        """
        for (kind, name, _, _, word), words in self.of.items():
            if word not in {QOS_LIST, DEFAULT_QOS} and (kind == "qos" or name in policy):
                return (
                    f"Slurm did not accept a limit of {kind} {name}: {words.strip()}. "
                    "All others are set, except those that would have grown with it."
                )
        return ""


def _compiled(
    seen: LimitComparison,
    applied: tuple[LimitChange, ...],
    changed_out_of_band: Iterable[OutOfBandChange],
    refused: _Refused,
    *,
    qos: tuple[Qos, ...],
) -> Compiled:
    policy = seen.allowed.policy
    return Compiled(
        ledger_view=seen.ledger_view,
        policy=policy,
        standings=dict(seen.allowed.standings),
        run_minutes=dict(seen.allowed.run_minutes),
        associations=seen.associations,
        qos=qos,
        changes=applied,
        out_of_band=tuple(changed_out_of_band),
        warnings=seen.warnings,
        refused=refused.changes,
        refused_of=refused.tenants(policy),
        waits=tuple(limit for limit in seen.differences if unit(limit) not in refused.of),
    )


def _tell(changes: Iterable[OutOfBandChange]) -> None:
    for change in changes:
        of = f"{change.key.entity} {change.key.name}"
        warn("limit_changed_by_hand", of=of, field=change.key.field, was=change.was, now=change.now)


async def _adopt(ledger: Ledger, seen: LimitComparison) -> None:
    """Adopt limits of tenants' own QOS that were changed outside Slicewise as their nominals."""
    for band_change in seen.out_of_band:
        await asyncio.to_thread(_adopt_one, ledger, seen, band_change)


def _adopt_one(ledger: Ledger, seen: LimitComparison, change: OutOfBandChange) -> None:
    """Adopt one change; a nominal that the policy does not allow is put back like all else."""
    of = {LimitKey("qos", qos_name(name), BILLING): name for name in seen.allowed.policy}
    tenant = of.get(change.key)
    if tenant is None:
        return
    before = effective_nominal(seen.allowed.policy)[tenant]
    nominal = adopted_nominal(change, before, seen.found.billing)
    if nominal is None:
        return
    update = TenantUpdate(tenant, nominal_millislices=Millislices(nominal))
    with suppress(InvalidInputError):
        ledger.tenants.change(update, "sacctmgr", "changed in Slurm, outside Slicewise")
