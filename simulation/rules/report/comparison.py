"""Compares two simulated policies: which figure is better, and which tenant gains or loses."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Annotated, Literal

from pydantic import computed_field

from slicewise.cluster.language.documents import HIDDEN
from slicewise.simulation.rules.runs.run_figures import (
    Estimate,
    Figures,
    ReplayedService,
    ReplayedTenant,
    SelfCheck,
    SimulationResult,
)

_NOTICED_S = 30.0
"""A difference of waits that counts: Slurm's backfill runs each 30 s, and less is chance."""
_NOTICED_SHARE = 0.05
"""The same as a share of the present wait."""
_FAR_SHARE, _FAR_S = 0.5, 60.0
"""A replay whose mean wait is wrong by more than both is far from what happened."""
_FAR_ORDER, _FAR_USE, _FAR_NEVER = 0.75, 0.1, 0.05
"""So is one with a share of pairs in order below the first, a use that is wrong by more than the
second, or a larger share of jobs that never start than the third."""


class ChangeVerdict(StrEnum):
    """What a change does to a figure or a tenant."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """The difference is too small to be noticed."""
    UNCLEAR = "unclear"
    """The interval of the difference over the start offsets has 0 in it: it may be chance."""


@dataclass(frozen=True)
class Measure:
    """A figure of a run.

    Attributes:
        figure: the field of Figures.
        words: how a reader calls it.
        kind: a share of 1, a wait in seconds, an index of 1, or a count.
        more: whether more of it is better or worse.
        noticed: the smallest difference that counts; of waits also 5 % of the present one.
    """

    figure: str
    words: str
    kind: Literal["share", "wait", "index", "count"]
    more: Literal[ChangeVerdict.BETTER, ChangeVerdict.WORSE]
    noticed: float


MEASURES = (
    Measure("utilisation", "slices in use", "share", ChangeVerdict.BETTER, 0.005),
    Measure("idle_wanted_share", "idle though wanted", "share", ChangeVerdict.WORSE, 0.005),
    Measure("wait_mean_s", "wait, mean", "wait", ChangeVerdict.WORSE, _NOTICED_S),
    Measure("wait_p50_s", "wait, half within", "wait", ChangeVerdict.WORSE, _NOTICED_S),
    Measure("wait_p99_s", "wait, 99 % within", "wait", ChangeVerdict.WORSE, _NOTICED_S),
    Measure("jain", "fairness, 1 is even", "index", ChangeVerdict.BETTER, 0.01),
    Measure("late_jobs", "late jobs in quota", "count", ChangeVerdict.WORSE, 1),
    Measure("refused", "refused", "count", ChangeVerdict.WORSE, 1),
)
"""The figures that are compared, in the order in which they are shown."""
TENANT_WAIT = MEASURES[2]
"""A tenant gains if its jobs wait less in the mean."""
SERVICE_IN_TIME = Measure("attainment", "in time", "share", ChangeVerdict.BETTER, 0.005)
"""A service gains if more of its requests meet its aim."""
SERVICE_WAIT = Measure("wait_p99_s", "wait, 99 % within", "wait", ChangeVerdict.WORSE, 1.0)
"""If as many do, it gains by shorter waits: a second counts, as people wait for it."""


@dataclass(frozen=True)
class FigureDifference:
    """A figure of the present policy and, if one was given, of the changed one.

    Attributes:
        interval: the 95 % interval over the start offsets, of the difference or, without a changed
            policy, of the figure; None with one offset. Of a count it is that of the whole time.
        verdict: None without a changed policy.
    """

    figure: str
    present: float
    changed: float | None
    interval: Estimate | None
    verdict: ChangeVerdict | None


@dataclass(frozen=True)
class TenantDifference:
    """A tenant's figures by both policies; None where the tenant has none.

    Attributes:
        verdict: by the mean wait of its jobs; None without a changed policy.
    """

    tenant: str
    present: Annotated[ReplayedTenant | None, HIDDEN]
    changed: Annotated[ReplayedTenant | None, HIDDEN]
    verdict: ChangeVerdict | None

    @computed_field
    @property
    def waited_less_s(self) -> float:
        """Seconds that its jobs together wait less by the changed policy; below 0 is more."""
        if self.present is None or self.changed is None:
            return 0.0
        return self.changed.jobs * (self.present.wait_mean_s - self.changed.wait_mean_s)


def differences(result: SimulationResult) -> tuple[FigureDifference, ...]:
    """Return each figure of MEASURES by both policies; refused jobs only where there are any."""
    differences = (_difference(measure, result) for measure in MEASURES)
    return tuple(
        difference
        for difference in differences
        if difference.figure != "refused" or difference.present or difference.changed
    )


def _difference(measure: Measure, result: SimulationResult) -> FigureDifference:
    present = float(getattr(result.present, measure.figure))
    if result.changed is None:
        estimate = _interval(measure, result.estimates, result.offsets)
        return FigureDifference(
            measure.figure, present, None, estimate and _possible(measure, estimate), None
        )
    changed = float(getattr(result.changed, measure.figure))
    interval = _interval(measure, result.difference_estimates, result.offsets)
    verdict = _clear(verdict_of(measure, present, changed), interval)
    return FigureDifference(measure.figure, present, changed, interval, verdict)


def _interval(measure: Measure, estimates: Mapping[str, Estimate], offsets: int) -> Estimate | None:
    estimate = estimates.get(measure.figure) if offsets > 1 else None
    if estimate is None or measure.kind != "count":
        return estimate
    return Estimate(*(offsets * value for value in (estimate.mean, estimate.low, estimate.high)))


def _possible(measure: Measure, of: Estimate) -> Estimate:
    """The part of an interval that a figure can have: few starts give wide ones."""
    most = 1.0 if measure.kind in ("share", "index") else inf
    return Estimate(of.mean, max(0.0, of.low), min(most, of.high))


def verdict_of(measure: Measure, present: float, changed: float) -> ChangeVerdict:
    """Judge the step from one figure to another, whatever the intervals say."""
    share = _NOTICED_SHARE * abs(present) if measure.kind == "wait" else 0.0
    if abs(changed - present) < max(measure.noticed, share):
        return ChangeVerdict.SAME
    other = ChangeVerdict.WORSE if measure.more is ChangeVerdict.BETTER else ChangeVerdict.BETTER
    return measure.more if changed > present else other


def tenant_differences(result: SimulationResult) -> tuple[TenantDifference, ...]:
    """Return every tenant that has jobs, those that lose most first, those that gain most last."""
    present = _with_jobs(result.present)
    changed = _with_jobs(result.changed) if result.changed else {}
    differences = (
        _of_tenant(name, present.get(name), changed.get(name), compared=result.changed is not None)
        for name in present.keys() | changed.keys()
    )
    return tuple(sorted(differences, key=_place))


def _place(tenant_difference: TenantDifference) -> tuple[int, float, str]:
    rank = {ChangeVerdict.WORSE: 0, ChangeVerdict.BETTER: 2}.get(
        tenant_difference.verdict or ChangeVerdict.SAME, 1
    )
    return rank, tenant_difference.waited_less_s, tenant_difference.tenant


def _with_jobs(figures: Figures) -> Mapping[str, ReplayedTenant]:
    return {
        tenant.tenant: tenant
        for tenant in figures.tenants
        if tenant.jobs or tenant.held_millislice_s
    }


def _of_tenant(
    name: str, present: ReplayedTenant | None, changed: ReplayedTenant | None, *, compared: bool
) -> TenantDifference:
    if not compared:
        return TenantDifference(name, present, None, None)
    if present is None or changed is None:
        return TenantDifference(name, present, changed, ChangeVerdict.UNCLEAR)
    verdict = verdict_of(TENANT_WAIT, present.wait_mean_s, changed.wait_mean_s)
    return TenantDifference(name, present, changed, verdict)


@dataclass(frozen=True)
class ServiceDifference:
    """A service by both policies; None where a policy does not run it.

    Attributes:
        interval: the 95 % interval of the share in time over the start offsets, of the difference
            or, without a changed policy, of the share; None where fewer than two parts had
            requests.
        verdict: by the requests in time, and if as many are, by the 99th percentile of the waits;
            unclear where its interval has 0 in it. None without a changed policy.
    """

    service: str
    present: Annotated[ReplayedService | None, HIDDEN]
    changed: Annotated[ReplayedService | None, HIDDEN]
    interval: Estimate | None
    verdict: ChangeVerdict | None


def service_differences(result: SimulationResult) -> tuple[ServiceDifference, ...]:
    """Return every service, by name."""
    present = {service.service: service for service in result.present.services}
    changed = (
        {service.service: service for service in result.changed.services} if result.changed else {}
    )
    return tuple(
        _of_service(result, name, present.get(name), changed.get(name))
        for name in sorted(present.keys() | changed.keys())
    )


TOGETHER = "together"
"""What stands in place of a service's name for the sums of all."""


def together(figures: Figures | None) -> ReplayedService | None:
    """Return the sums of all services, and the share in time of all their requests.

    The wait is the longest of theirs. None for fewer than two.
    """
    services = () if figures is None else figures.services
    if len(services) < 2:  # noqa: PLR2004
        return None
    requests = sum(service.requests for service in services)
    met = sum(service.attainment * service.requests for service in services)
    return ReplayedService(
        service=TOGETHER,
        requests=requests,
        attainment=met / requests if requests else 1.0,
        wait_p99_s=max(service.wait_p99_s for service in services),
        slice_s=sum(service.slice_s for service in services),
        changes=sum(service.changes for service in services),
        lost=sum(service.lost for service in services),
        loads=sum(service.loads for service in services),
    )


def _of_service(
    result: SimulationResult,
    name: str,
    present: ReplayedService | None,
    changed: ReplayedService | None,
) -> ServiceDifference:
    if result.changed is None:
        own = result.service_estimates.get(name, {}).get(SERVICE_IN_TIME.figure)
        interval = own and _possible(SERVICE_IN_TIME, own)
        return ServiceDifference(name, present, None, interval, None)
    if present is None or changed is None:
        return ServiceDifference(name, present, changed, None, ChangeVerdict.UNCLEAR)
    steps = result.service_difference_estimates.get(name, {})
    verdict = _judged(SERVICE_IN_TIME, present, changed, steps)
    if verdict is ChangeVerdict.SAME:
        verdict = _judged(SERVICE_WAIT, present, changed, steps)
    interval = steps.get(SERVICE_IN_TIME.figure)
    return ServiceDifference(name, present, changed, interval, verdict)


def _judged(
    measure: Measure,
    present: ReplayedService,
    changed: ReplayedService,
    steps: Mapping[str, Estimate],
) -> ChangeVerdict:
    values = (float(getattr(service, measure.figure)) for service in (present, changed))
    return _clear(verdict_of(measure, *values), steps.get(measure.figure))


def _clear(verdict: ChangeVerdict, interval: Estimate | None) -> ChangeVerdict:
    """The verdict, or that it is unclear because the interval of the difference has 0 in it."""
    if verdict is not ChangeVerdict.SAME and interval and interval.low <= 0 <= interval.high:
        return ChangeVerdict.UNCLEAR
    return verdict


def gains_words(tenants: Iterable[TenantDifference]) -> str:
    """``3 tenants gain, 1 loses, 2 wait as before.``; "" without a changed policy.

    Tenants that only one policy has are said to be unclear, where there are any.
    """
    verdicts = Counter(
        difference.verdict for difference in tenants if difference.verdict is not None
    )
    if not verdicts:
        return ""
    gain, lose, same, unclear = (verdicts[verdict] for verdict in _IN_WORDS)
    noun = "tenant" if gain == 1 else "tenants"
    rest = f", {unclear} {'is' if unclear == 1 else 'are'} unclear" if unclear else ""
    return (
        f"{gain} {noun} {_verb(gain, 'gain')}, {lose} {_verb(lose, 'lose')},"
        f" {same} {_verb(same, 'wait')} as before{rest}."
    )


_IN_WORDS = (
    ChangeVerdict.BETTER, ChangeVerdict.WORSE, ChangeVerdict.SAME, ChangeVerdict.UNCLEAR,
)  # fmt: skip


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def is_far(check: SelfCheck) -> bool:
    """Whether the replay of the present policy is far from what happened."""
    error_s = abs(check.wait_mean_s - check.wait_mean_of_history_s)
    is_off = error_s > max(_FAR_S, _FAR_SHARE * check.wait_mean_of_history_s)
    is_used = abs(check.utilisation - check.utilisation_of_history) <= _FAR_USE
    is_short = check.never_started > _FAR_NEVER * (check.jobs + check.never_started)
    is_mixed = check.queue_order is not None and check.queue_order < _FAR_ORDER
    return is_off or is_mixed or not is_used or is_short
