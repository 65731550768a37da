"""Shows services to users."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from slicewise.cluster.language.audience import EVERY_TENANT
from slicewise.cluster.language.keep_warm import warm_words
from slicewise.cluster.language.palette import style_of
from slicewise.cluster.language.starts import ClassTimes, StartTrace, longest_words, total_s
from slicewise.cluster.language.units import counted, slices_text, slices_words
from slicewise.cluster.rpc.messages import AdapterReport, ReplicaLoad, ServiceQuality, ServiceReport
from slicewise.cluster.runtime.console import (
    Column,
    Facts,
    FittingTable,
    PipeConsole,
    column,
    fitted,
    toned,
)
from slicewise.launcher.rules.engines.least_versions import upgrade
from slicewise.launcher.services.overview import PooledModel, ReplicaView, ServiceObservation, State

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def services_overview(services: Sequence[ServiceObservation]) -> RenderableType:
    """Return a table with one line per service, and below it what was lost for good."""
    losses = (Text(f"{s.service}: {s.loss}", style="red") for s in services if s.loss)
    return Group(_ServicesTable(services), *losses)


@dataclass(frozen=True)
class _ServicesTable:
    """A table whose addresses stand below it where the terminal has no room for their column."""

    services: Sequence[ServiceObservation]

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for the width that rich gives."""
        columns = _columns(self.services)
        yield FittingTable(columns, "No services. Start one: slicewise service apply FILE.toml")
        if not isinstance(out, PipeConsole) and columns[-1] not in fitted(
            columns, options.max_width
        ):
            # A terminal continues a long address on the next line, from where it can be copied.
            for service in self.services:
                yield Text(f" {service.service}: {service.url}", no_wrap=True, overflow="ignore")


def _columns(services: Sequence[ServiceObservation]) -> tuple[Column, ...]:
    return (
        column("service", (s.service for s in services)),
        column("state", map(condition, services)),
        column("array job", (s.array_job_id for s in services), right=True, rank=5),
        column("profile", (s.shape.words for s in services), rank=4),
        column("desired", map(_desired, services), right=True, rank=6),
        column("ready", _counts(services, "ready"), right=True, rank=1),
        column("starting", _counts(services, "starting"), right=True, rank=2),
        column("draining", _counts(services, "draining"), right=True, rank=4),
        column("outdated", (_outdated_count(s) for s in services), right=True, rank=3),
        column("backlog", (_number(s.backlog) for s in services), right=True, rank=1),
        column("in flight", (_number(s.in_flight) for s in services), right=True, rank=1),
        *_quality_columns(services),
        column("address", (s.url for s in services), rank=7),
    )


def condition(service: ServiceObservation) -> Text:
    """Return the service's state in its colour."""
    return toned(service.state)


def _counts(services: Iterable[ServiceObservation], state: State) -> Iterable[Text]:
    counts = (len(service.in_state(state)) for service in services)
    return (Text(str(count), style=style_of(state) if count else "dim") for count in counts)


def _desired(service: ServiceObservation) -> str:
    return _number(service.report.desired_replicas if service.report is not None else None)


def _outdated_count(service: ServiceObservation) -> Text:
    count = len(service.outdated)
    return Text(str(count), style="yellow" if count else "dim")


def _quality_columns(services: Iterable[ServiceObservation]) -> Iterable[Column]:
    qualities = [service.quality or _UNKNOWN for service in services]
    yield column("p50", (_ms(quality.p50_ms) for quality in qualities), right=True, rank=10)
    yield column("p95", (_ms(quality.p95_ms) for quality in qualities), right=True, rank=9)
    yield column(
        "in time",
        (_percent(quality.objective_met_share) for quality in qualities),
        right=True,
        rank=8,
    )
    yield column("errors", (quality.errors or "–" for quality in qualities), right=True, rank=10)
    yield column(
        "cold starts", (quality.cold_starts or "–" for quality in qualities), right=True, rank=11
    )


_UNKNOWN = ServiceQuality(span_s=0, answered=0)


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f} ms" if value < _SECOND_MS else f"{value / 1000:.1f} s"


_SECOND_MS = 1000


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def service_details(service: ServiceObservation) -> RenderableType:
    """Return everything about one service."""
    parts: list[RenderableType] = [Facts(tuple(_facts(service)))]
    if service.replicas:
        parts.append(_replicas_table(service.replicas))
    if service.pool is not None:
        parts.append(_pool_table(service.pool))
    return Group(*parts)


def _facts(service: ServiceObservation) -> Iterable[tuple[str, Text]]:
    yield "service", Text(f"{service.service} ({_arrays(service)})")
    yield "state", condition(service)
    yield "address", Text(f"{service.url}{service.api}/...")
    if service.audience:
        yield "audience", Text(_audience(service.audience))
    yield "replicas", _replicas(service)
    yield "requests", Text(_requests(service))
    if service.quality is not None:
        yield "answers", Text(_quality(service, service.quality))
    if service.report is not None:
        yield from _reported(service, service.report)
    if service.pool is not None:
        yield "pool", Text(_pool(service.directives.get("pool", ""), service.pool))
    yield "slice", Text(_slice(service))
    yield "quota", Text(_quota(service))
    for heading, text, style in _remarks(service):
        yield heading, Text(text, style=style)


def _reported(service: ServiceObservation, report: ServiceReport) -> Iterable[tuple[str, Text]]:
    yield "desired", Text(f"{counted(report.desired_replicas, 'replica')}: {report.reason}")
    if report.warm_replicas or report.warm_days:
        yield "keep-warm", Text(warm_words(report.warm_replicas, report.warm_days))
    if report.starts:
        yield "last start", Text(_last_start(service, report.starts[-1]))
    if report.start_classes:
        yield "starts", Text("; ".join(map(_class_words, report.start_classes)))
    if report.concurrency is not None:
        yield "carries", Text(_carries(report))
    if service.token_objective:
        yield "tokens", Text(_tokens(service, report))
    if old := report.old_engine:
        yield "engine", Text(f"{old}: {upgrade(old.rpartition(' ')[0])}", style="yellow")
    if report.engine_load is not None:
        yield "engines", Text("; ".join(_servers(report.engine_load)))
    for adapter in report.adapters:
        yield "adapter", Text(_adapter(adapter), style="red" if adapter.why else "")


def _last_start(service: ServiceObservation, trace: StartTrace) -> str:
    state = {"starting": " so far", "ended": " until it ended", "ready": ""}[trace.state]
    return (
        f"{total_s(trace):.2f} s{state} ({trace.start_class}): {longest_words(trace)}"
        f" (all: slicewise service trace {service.name})"
    )


def _class_words(times: ClassTimes) -> str:
    return f"{times.starts} {times.start_class}, half within {times.p50_s:.2f} s"


def _audience(audience: Sequence[str]) -> str:
    if EVERY_TENANT in audience:
        return "all tenants"
    return f"{', '.join(audience)}, each with all below it"


def _adapter(adapter_report: AdapterReport) -> str:
    place = (
        f"loaded by {adapter_report.loaded} of {adapter_report.replicas} replicas"
        if adapter_report.replicas
        else "no replica"
    )
    why = f"; refused: {adapter_report.why}" if adapter_report.why else ""
    return f"{adapter_report.model}: {adapter_report.requests} requests, {place}{why}"


def _carries(report: ServiceReport) -> str:
    requests = counted(report.concurrency or 0, "request")
    if not report.is_concurrency_learnt:
        return f"each replica {requests} at a time"
    how = "learnt from how long requests take"
    if source := report.concurrency_source:
        how = f"{source}, until its own requests say more"
    return f"each replica {requests} at a time now, {how}"


def _tokens(service: ServiceObservation, report: ServiceReport) -> str:
    objective = f"objective: {service.token_objective}"
    if report.ttft_ms is None or report.tpot_ms is None:
        return f"not timed yet ({objective})"
    first, each = _ms(report.ttft_ms), f"{report.tpot_ms:.1f} ms"
    if report.ttft_p95_ms is not None:
        first += f" (95 % within {_ms(report.ttft_p95_ms)})"
    return f"the first after {first} in a replica, then one each {each}, on average ({objective})"


def _servers(load: ReplicaLoad) -> Iterable[str]:
    wait = "waits" if load.waiting == 1 else "wait"
    yield f"they work on {counted(load.running, 'request')}, {load.waiting:,} more {wait} in them"
    if load.kv_cache_share is not None:
        yield f"KV cache {_percent(load.kv_cache_share)} in use where it is fullest"
    if load.preemptions:
        times = "once" if load.preemptions == 1 else f"{load.preemptions:,} times"
        yield f"requests set back {times} since it was full"
    if load.prefix_cache_hit_share is not None:
        yield f"{_percent(load.prefix_cache_hit_share)} of the prompts' tokens found in it"


def _arrays(service: ServiceObservation) -> str:
    newest = f"array job {service.array_job_id}"
    older = ", ".join(map(str, service.older))
    return f"{newest}, replaces {older}" if older else newest


def _slice(service: ServiceObservation) -> str:
    bounds = f"{service.shape.words}, {service.min_replicas} to {service.max_replicas}"
    return f"{bounds} as set by service scale" if service.is_scaled else bounds


def _remarks(service: ServiceObservation) -> Iterable[tuple[str, str, str]]:
    """Yield heading, text and style of remarks that only some services have."""
    if service.is_ending:
        yield "ends", "its owner has deleted it; requests in flight finish", "yellow"
    elif outdated := len(service.outdated):
        yield "rolls over", f"{outdated} outdated; each ends when a new one serves", "yellow"
    if service.note:
        yield "waits", service.note, "yellow"
    if service.loss:
        yield "lost", service.loss, "red"


def _replicas(service: ServiceObservation) -> Text:
    parts = (
        Text(f"{len(slots)} {state} ({_ranges(slots)})", style=style_of(state))
        for state, slots in service.slots.items()
        if slots
    )
    return Text(", ").join(parts)


def _ranges(indices: Iterable[int]) -> str:
    """Slots as ranges: ``0-2,5``."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _replicas_table(replicas: Sequence[ReplicaView]) -> FittingTable:
    return FittingTable(
        (
            column("replica", (f"{replica.array_job_id}_{replica.slot}" for replica in replicas)),
            column("state", (toned(replica.state) for replica in replicas)),
            column("node", (replica.node for replica in replicas), rank=2),
            column("age", (_span(replica.age_s) for replica in replicas), right=True, rank=1),
            column(
                "lease left",
                (_span(replica.lease_left_s) for replica in replicas),
                right=True,
                rank=1,
            ),
            column("why", (_remark(replica) for replica in replicas), folds=True),
        )
    )


def _pool(name: str, models: Sequence[PooledModel]) -> str:
    """Say how many services share, and how much of its memory each replica has given away."""
    services = counted(len({model.service for model in models}), "service")
    taken = dict[str, list[PooledModel]]()
    for model in models:
        if model.array_job_id is not None and model.state != "refused":
            taken.setdefault(_place(model), []).append(model)
    replicas = [_taken(place, models_there) for place, models_there in taken.items()]
    return f"{name}, {services}: {'; '.join(replicas) or 'no replica'}"


def _taken(place: str, models: Sequence[PooledModel]) -> str:
    room_mib = models[0].replica_mib
    mib = sum(model.memory_mib or 0 for model in models)
    room = f", {mib:,} of {room_mib:,} MiB" if room_mib is not None else ""
    return f"{place} {counted(len(models), 'model')}{room}"


def _place(model: PooledModel) -> str:
    return "" if model.array_job_id is None else f"{model.array_job_id}_{model.slot}"


def _pool_table(models: Sequence[PooledModel]) -> FittingTable:
    return FittingTable(
        (
            column("replica", map(_place, models)),
            column("node", (model.node or "" for model in models), rank=4),
            column("model", (model.model for model in models)),
            column("service", (model.service for model in models), rank=3),
            column("state", (toned(model.state) for model in models)),
            column("MiB", map(_mib, models), right=True, rank=2),
            column("load s", map(_load_s, models), right=True, rank=2),
            column("in flight", (str(model.in_flight) for model in models), right=True, rank=1),
            column("why", (model.why for model in models), folds=True),
        )
    )


def _mib(model: PooledModel) -> str:
    return "–" if model.memory_mib is None else f"{model.memory_mib:,}"


def _load_s(model: PooledModel) -> str:
    return "–" if model.load_s is None else f"{model.load_s:.2f}"


def _remark(replica_view: ReplicaView) -> str:
    marks = (
        "outdated" if replica_view.is_outdated else "",
        "other model files than applied" if replica_view.has_other_files else "",
        "borrowed" if replica_view.is_borrowed else "",
    )
    log = f"log: {replica_view.last_log_line}" if replica_view.last_log_line else ""
    return "; ".join(filter(None, (*marks, replica_view.why, log)))


def _span(seconds: int | None) -> str:
    match seconds:
        case None:
            return "–"
        case _ if seconds < 2 * _MINUTE_S:
            return f"{seconds} s"
        case _ if seconds < 2 * _HOUR_S:
            return f"{seconds // _MINUTE_S} min"
        case _ if seconds < 2 * _DAY_S:
            return f"{seconds // _HOUR_S} h"
        case _:
            return f"{seconds // _DAY_S} days"


def _requests(service: ServiceObservation) -> str:
    if service.load is None:
        return "not known: the launcher has not reported it yet, or not lately"
    load, report = service.load, service.report
    rate = (
        f"; {report.rate_per_s:g} arrive per second"
        if report is not None and report.rate_per_s
        else ""
    )
    return (
        f"{load.in_flight} in flight, {load.waiting} waiting"
        f"{' for a first replica' if load.held else ''}{rate}"
    )


def _quality(service: ServiceObservation, service_quality: ServiceQuality) -> str:
    """Say how well it answered, against its objective."""
    met = (
        f", {_percent(service_quality.objective_met_share)} in time"
        if service_quality.objective_met_share is not None
        else ""
    )
    objective = f" (objective: {service.objective}{met})" if service.objective else ""
    figures = f"p50 {_ms(service_quality.p50_ms)}, p95 {_ms(service_quality.p95_ms)}"
    if service_quality.answered == 1:
        figures = f"after {_ms(service_quality.p95_ms)}"
    times = f"{figures}{objective}; " if service_quality.answered else ""
    cold = (
        "1 cold start"
        if service_quality.cold_starts == 1
        else f"{service_quality.cold_starts} cold starts"
    )
    return (
        f"{times}{service_quality.answered:,} answered, {service_quality.errors:,} errors,"
        f" {service_quality.unanswered:,} unanswered, {cold}"
        f" in the last {_span(service_quality.span_s)}"
    )


def _quota(service: ServiceObservation) -> str:
    quota = service.quota
    if quota is None:
        return "none"
    in_use, nominal = quota.in_use_millislices, quota.nominal_millislices
    if quota.limit_millislices is None:
        return (
            f"{service.tenant} holds {slices_text(in_use)} of its nominal {slices_words(nominal)}"
        )
    limit = slices_words(quota.limit_millislices)
    holds = f"{service.tenant} holds {slices_text(in_use)} of its limit of {limit}"
    return f"{holds}; nominal {slices_text(nominal)}"
