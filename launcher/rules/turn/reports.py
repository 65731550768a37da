"""Builds what a service's users are told: requests, replicas, what was decided and why."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slicewise.cluster.language.keep_warm import WarmDay
from slicewise.cluster.rpc.messages import (
    MOST_REFUSALS,
    ModelRefusal,
    ReplicaLoad,
    ServiceQuality,
    ServiceReport,
    SlotPlace,
)
from slicewise.launcher.rules.autoscale.tokens import TokensDone
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.notes import note
from slicewise.launcher.rules.turn.service import NOTHING_HEARD, Heard, ServicePlan
from slicewise.launcher.rules.turn.slots import Phase, Slot
from slicewise.launcher.rules.turn.state import ServiceState

RATE_S = 15.0
"""Seconds over which the rate of requests is taken."""

_TENTH = 360_000
"""Millislice-seconds of a tenth of a slice-hour."""

Samples = tuple[tuple[float, int], ...]
"""Times of looks, in seconds of a clock that nothing sets, and how many requests had come then."""


def sampled(before: Samples, at_s: float, load: Load) -> Samples:
    """Add one more look; drop earlier ones if the counter is lower: it started again at 0."""
    if before and load.arrived < before[-1][1]:
        before = ()
    since_s = at_s - RATE_S
    later = sum(event[0] > since_s for event in before)
    # The last sample before the span is where the rate begins.
    return (*before[max(0, len(before) - later - 1) :], (at_s, load.arrived))


def service_report(
    plan: ServicePlan,
    state: ServiceState,
    samples: Samples,
    unrouted: str = "",
    quality: ServiceQuality | None = None,
    *,
    heard: Heard = NOTHING_HEARD,
) -> ServiceReport:
    """Build the report of one service.

    ``state`` is what is remembered of it after ``plan``; ``unrouted`` says why no request reaches
    it, "" if requests do; ``heard`` is what was heard of all services.
    """
    tenant, _, name = plan.service.partition("/")
    newest = state.generations.get(plan.array_job_id)
    backoff = newest.backoff if newest is not None else Backoff()
    load = heard.loads.get(plan.service)
    is_timed = plan.spec.times_tokens and state.memory is not None
    tokens = state.memory.tokens if is_timed and state.memory is not None else TokensDone()
    return ServiceReport(
        tenant=tenant,
        name=name,
        in_flight=plan.load.in_flight,
        queued=plan.load.queued,
        held=plan.load.held,
        rate_per_s=_rate_per_s(samples),
        desired_replicas=plan.decision.wanted,
        reason=note((unrouted, plan.decision.reason) if unrouted else (plan.decision.reason,)),
        ready=_places(s for s in plan.slots if s.phase is Phase.SERVING and s.up),
        draining=_places(s for s in plan.slots if s.phase is Phase.DRAINING or s.is_drained),
        shared_replicas=plan.shared_replicas,
        warm_replicas=round(plan.decision.kept_warm.replicas, 1),
        warm_days=tuple(map(_rounded, state.warm.days)),
        failed_starts=backoff.failures,
        next_start_s=backoff.until_s or None,
        is_unpaid=plan.is_unpaid,
        quality=quality,
        is_routed=not unrouted,
        array_job_id=plan.array_job_id,
        concurrency=plan.concurrency,
        is_concurrency_learnt=plan.route.follows,
        concurrency_source="" if state.memory is None else state.memory.capacity.source,
        ttft_ms=_ms(tokens.to_first_s),
        ttft_p95_ms=_ms(tokens.first_p95_s),
        tpot_ms=_ms(tokens.per_token_s),
        engine_load=None if load is None else _servers(load),
        adapters=heard.adapter_reports.get(plan.service, ()),
        refusals=tuple(
            ModelRefusal(
                array_job_id=refusal.place[0], slot=refusal.place[1], why=note((refusal.why,))[:200]
            )
            for refusal in plan.refusals[:MOST_REFUSALS]
        ),
        places=plan.places,
        old_engine=heard.old_engines.get(plan.service, ""),
        starts=state.starts.newest,
    )


def _rounded(day: WarmDay) -> WarmDay:
    """Round down to a tenth of a slice-hour, so that a report is not new with each turn."""
    return replace(day, millislice_s=day.millislice_s // _TENTH * _TENTH)


def _servers(load: ServersLoad) -> ReplicaLoad:
    preemptions = load.counts.preemptions
    return ReplicaLoad(
        running=load.running,
        waiting=load.waiting,
        kv_cache_share=_share(load.kv_cache),
        preemptions=None if preemptions is None else round(preemptions),
        prefix_cache_hit_share=_share(load.prefix_hits),
    )


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _rate_per_s(samples: Sequence[tuple[float, int]]) -> float:
    if len(samples) <= 1:
        return 0.0
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    return round((last - first) / max(last_s - first_s, 1.0), 2)


def _places(slots: Iterable[Slot]) -> tuple[SlotPlace, ...]:
    return tuple((slot.id.array_job_id, slot.id.index) for slot in slots)
