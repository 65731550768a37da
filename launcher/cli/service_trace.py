"""``slicewise service trace``: where the seconds of a service's last starts went."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.palette import START_PHASES
from slicewise.cluster.language.starts import (
    PHASE_TEXTS,
    ClassTimes,
    Fallback,
    Moment,
    PhaseTime,
    StartClass,
    StartState,
    StartTrace,
    bytes_per_s,
    class_sentences,
    class_times,
    fallback_sentences,
    longest_words,
    phases_of,
    total_s,
    weights_words,
)
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.read_messages import ServiceStartsRequest
from slicewise.cluster.runtime.console import FittingTable, column, time_text, toned
from slicewise.cluster.runtime.output_options import Json, Watch, show
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.services.lookup import Name, choose

trace_app = typer.Typer()

_BAR_CELLS = 32


@dataclass(frozen=True)
class TracedStart:
    """One start of a replica.

    Attributes:
        node: null while Slurm has given it none.
        weights_bytes: how large the model's files are; null without a node cache.
        bytes_per_s: how fast they were read, the engine's own start included unless they were
            copied first; null is not known.
        fallback: why they were not read on the node although there is a node cache.
        total_s: seconds until it was over; of one under way until the launcher saw it last.
        phases: in order; they follow each other, so that they are ``total_s`` together.
        at_s: Unix seconds of each moment that is known, in order, by the clock of the launcher's
            host.
    """

    array_job_id: int
    slot: int
    node: str | None
    state: StartState
    start_class: StartClass
    weights_bytes: int | None
    bytes_per_s: float | None
    fallback: Fallback | None
    total_s: float
    phases: tuple[PhaseTime, ...]
    at_s: Mapping[Moment, float] = field(hash=False)


@dataclass(frozen=True)
class ServiceTrace:
    """The last starts of a service.

    Attributes:
        service: ``tenant/name``.
        starts: the newest last.
        classes: how long those that became ready took, by where their weights were.
    """

    service: str
    starts: tuple[TracedStart, ...]
    classes: tuple[ClassTimes, ...]


@trace_app.command(
    "trace",
    epilog="Examples: slicewise service trace bert | slicewise service trace bert --watch"
    " | slicewise service trace vision/bert --json",
)
def service_trace(name: Name, watch: Watch = False, as_json: Json = False) -> None:
    """Show where the seconds of a service's last starts went, phase by phase: from the first
    request that waited to the first byte of its answer.

    The last 20 starts, the newest last; then the phases of the newest, and how long half and
    95 % of the starts took. A start that no request waited for begins with the launcher's
    decision, and ends in the gateway. What a node did is told by the replica once it is ready;
    Slurm's part is in whole seconds.
    """
    settings = load_settings()
    show(
        lambda: _looked_up(settings, name),
        _shown,
        watch=watch,
        as_json=as_json,
        as_values=_as_values,
    )


@dataclass(frozen=True)
class _Traces:
    service: str
    traces: tuple[StartTrace, ...]


def _looked_up(settings: Settings, name: str) -> _Traces:
    tenant, _, last = name.rpartition("/")
    request = ServiceStartsRequest.of(name=last, tenant=tenant or None)
    services = DaemonClient(settings.daemon).call(request).services
    traces = {f"{service.tenant}/{service.name}": service.starts for service in services}
    service = choose(name, traces)
    return _Traces(service, traces[service])


def _as_values(looked_up: _Traces) -> ServiceTrace:
    starts = tuple(
        TracedStart(
            trace.array_job_id,
            trace.slot,
            trace.node or None,
            trace.state,
            trace.start_class,
            trace.weights.bytes,
            bytes_per_s(trace),
            trace.weights.fallback,
            total_s(trace),
            phases_of(trace),
            trace.at_s,
        )
        for trace in looked_up.traces
    )
    return ServiceTrace(looked_up.service, starts, class_times(looked_up.traces))


def _shown(looked_up: _Traces) -> RenderableType:
    traces = looked_up.traces
    if not traces:
        return Text(f"{looked_up.service}: no start has been seen yet.")
    newest = traces[-1]
    heading = Text(f" The newest start, {newest.array_job_id}_{newest.slot}:", style="bold")
    sentences = (*class_sentences(traces), *fallback_sentences(traces))
    words = (Text(f" {sentence}") for sentence in sentences)
    return Group(_starts_table(traces), heading, _phases_table(newest), *words)


def _starts_table(traces: tuple[StartTrace, ...]) -> FittingTable:
    longest_s = max(map(total_s, traces))
    return FittingTable(
        (
            column("began", (time_text(min(trace.at_s.values())) for trace in traces), rank=2),
            column("replica", (f"{trace.array_job_id}_{trace.slot}" for trace in traces)),
            column("node", (trace.node for trace in traces), rank=3),
            column("weights", map(weights_words, traces), rank=4),
            column("state", (toned(trace.state) for trace in traces)),
            column("s", (f"{total_s(trace):.2f}" for trace in traces), right=True),
            column("phases", (_bar(phases_of(trace), longest_s) for trace in traces), rank=1),
            column("longest", (longest_words(trace) for trace in traces), folds=True, rank=5),
        )
    )


def _phases_table(trace: StartTrace) -> FittingTable:
    phases = phases_of(trace)
    longest_s = max((phase.seconds for phase in phases), default=0.0)
    return FittingTable(
        (
            column("phase", (_word(phase.phase) for phase in phases)),
            column("s", (f"{phase.seconds:.3f}" for phase in phases), right=True),
            column("", (_bar((phase,), longest_s) for phase in phases), rank=1),
            column("what happens", (PHASE_TEXTS[phase.phase] for phase in phases), folds=True),
        ),
        "Its first moment was just seen.",
    )


def _word(phase: str) -> Text:
    return Text(START_PHASES[phase].word, style=START_PHASES[phase].style)


def _bar(phases: Iterable[PhaseTime], whole_s: float) -> Text:
    """Draw phases to scale: each end is rounded, so that the bar is as long as its start."""
    bar, passed_s, drawn = Text(), 0.0, 0
    for phase in phases:
        passed_s += phase.seconds
        end = round(_BAR_CELLS * passed_s / whole_s) if whole_s else 0
        bar.append("█" * (end - drawn), style=START_PHASES[phase.phase].style)
        drawn = end
    return bar
