"""Gathers the services that are simulated: of the site or of files, with traces of requests."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec, service_spec
from slicewise.cluster.language.slurm.unread import quoted
from slicewise.cluster.language.units import counted
from slicewise.launcher.services.service_file import TABLE, read_tables
from slicewise.simulation.cli.inputs import Demand, SiteInputs
from slicewise.simulation.cli.pools import pool_notes, shared_specs, with_model_mib
from slicewise.simulation.history.requests import RequestTrace, read_requests
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.history.traced_request import TracedRequest
from slicewise.simulation.rules.report.figure_texts import length_text, unread_text
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.simulation.rules.services.traffic import EngineFigures, traffic
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority import PriorityTerms, site_factor, smallness

ENGINE = "engine"
_MOST_TURNS = 1_500_000
"""Turns of the launcher for a service for which something moves, at most: those of 17 days."""
_ONE_TIME_S = 7 * 86_400.0
"""Traces that begin within as many seconds are of one time."""
_TAIL_S = 86_400
"""Seconds after the end in which requests still come, as jobs do."""
_NOT_MEASURED = EngineFigures()
_NO_REQUESTS = RequestTrace((), 0, "")


class _Engine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    loads_s: tuple[Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)], ...] = ()
    seconds: Mapping[
        Annotated[int, Field(ge=1, le=1024)],
        Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)],
    ] = {}
    model_load_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class _Known:
    """A service that can be simulated.

    Attributes:
        partitions: where its slots may run; empty for any managed one.
        arrays: ids of its generations on the site; none if the site does not have it.
        is_of_file: whether it would be submitted anew, by that file.
    """

    spec: ServiceSpec
    figures: EngineFigures = _NOT_MEASURED
    partitions: tuple[str, ...] = ()
    arrays: frozenset[int] = frozenset()
    is_of_file: bool = False


@dataclass(frozen=True)
class AskedServices:
    """The services that are simulated, and what is to be said of them.

    Attributes:
        pooled: the same services in pools, which the changed policy runs; none if nobody asked what
            pools would save.
        arrays: ids of their generations on the site, whose runs are no jobs of the past.
        turn_s: seconds between two turns of the launcher for a service for which something moves.
    """

    services: tuple[SimulatedService, ...] = ()
    pooled: tuple[SimulatedService, ...] = ()
    arrays: frozenset[int] = field(default=frozenset(), hash=False)
    turn_s: float = 1.0
    notes: tuple[str, ...] = ()

    def of_plans(
        self, present: SitePlan, changed: SlicewisePlan | None
    ) -> tuple[SitePlan, SlicewisePlan | None, Sequence[str]]:
        """Return both plans with these services, and what is to be said of them.

        Raises InvalidInputError (SW-USAGE) if there is no plan that runs services.
        """
        notes = self.notes
        if self.pooled and not isinstance(present, SlicewisePlan):
            raise _refused(
                "--pooled compares services that Slicewise runs, and Slurm alone runs none.",
                "Give the cluster file its tenants: [tenants.NAME] with nominal = 8.",
            )
        if isinstance(present, SlicewisePlan):
            if self.pooled:
                changed = changed or replace(present, name="changed")
            present = self._in(present, self.services)
        elif self.services and changed is None:
            raise _refused(
                "The site's limits are Slurm's own: nobody would start and end replicas there.",
                "Simulate Slicewise by --change FILE, which may be an empty file.",
            )
        elif self.services:
            notes = (*notes, "Slurm alone runs no services: only the changed policy has them.")
        if changed is not None:
            changed = self._in(changed, self.pooled or self.services)
        return present, changed, notes

    def _in(self, plan: SlicewisePlan, services: tuple[SimulatedService, ...]) -> SlicewisePlan:
        return replace(plan, services=services, turn_s=self.turn_s)

    def without_their_runs(self, jobs: tuple[HistoryJob, ...]) -> tuple[HistoryJob, ...]:
        """Return the jobs of the past that were no replicas of these services."""
        return tuple(job for job in jobs if job.array_job_id not in self.arrays)


def asked_services(
    site: SiteInputs,
    asked: Demand,
    files: Sequence[Path],
    requests: Sequence[str],
    *,
    in_pools: bool = False,
) -> AskedServices:
    """Return the services of the files, and those of the site for which there are ``requests``.

    Each of these is ``TENANT/SERVICE=FILE``. ``in_pools``: each tenant's are alone by the present
    policy, and share replicas by the changed one. Raises InvalidInputError: SW-USAGE for one
    that is not known, can't run on the site or can't share, SW-SERVICE for a file of a
    service, SW-INPUT-FILE for a trace.
    """
    if not files and not requests:
        if in_pools:
            raise _refused("--pooled names no services.", "Name them by --service and --requests.")
        return AskedServices()
    arrays_of = _arrays_of(site)
    files_by_key = dict(_of_file(file, arrays_of) for file in files)
    traces: dict[str, RequestTrace] = {}
    for text in requests:
        key, file = _named(text, files_by_key.keys() | arrays_of.keys())
        if key in traces:
            raise _refused(f"--requests names {key} twice.", "Join the traces in one file.")
        traces[key] = read_requests(file)
        if key not in files_by_key:
            files_by_key[key] = _of_site(site, arrays_of[key])
    shared = shared_specs([traced.spec for traced in files_by_key.values()]) if in_pools else {}
    apart_s = _apart_s(traces) if in_pools else {}
    played = [
        _simulated(
            site,
            asked,
            replace(files_by_key[key], spec=shared.get(key, files_by_key[key].spec)),
            traces.get(key, _NO_REQUESTS),
            apart_s.get(key, 0.0),
        )
        for key in sorted(files_by_key)
    ]
    services = tuple(service for service, _ in played)
    turn_s = float(max(1, ceil((asked.end_s - asked.start_s) / _MOST_TURNS)))
    arrays = frozenset(
        array for service_files in files_by_key.values() for array in service_files.arrays
    )
    replayed = sum(job.array_job_id in arrays for job in asked.jobs)
    return AskedServices(
        services=tuple(map(_alone, services)) if in_pools else services,
        pooled=services if in_pools else (),
        arrays=arrays,
        turn_s=turn_s,
        notes=(
            *(note for _, notes in played for note in notes),
            *pool_notes(services, site.settings.memory_mib),
            *_notes(turn_s, arrays, replayed),
        ),
    )


def _alone(service: SimulatedService) -> SimulatedService:
    return replace(service, spec=service.spec.model_copy(update={"pool": None}))


def _apart_s(traces: Mapping[str, RequestTrace]) -> Mapping[str, float]:
    """Seconds by which each trace begins after the first one, where they are of one time.

    When services are asked together decides what a pool saves.
    """
    first_s = min((trace.begin_s for trace in traces.values()), default=0.0)
    apart_s = {key: trace.begin_s - first_s for key, trace in traces.items()}
    return apart_s if max(apart_s.values(), default=0.0) < _ONE_TIME_S else {}


def _notes(turn_s: float, arrays: frozenset[int], replayed: int) -> Iterator[str]:
    if turn_s > 1:
        yield (
            f"The launcher looks at services each {turn_s:g} s, and on a cluster four times a"
            " second: replicas come and go that much later."
        )
    if arrays:
        yield (
            f"{counted(replayed, 'past run')} of these services' replicas left out of the jobs;"
            " those of generations that were gone when the snapshot was taken are replayed as jobs."
        )


def _arrays_of(site: SiteInputs) -> Mapping[str, frozenset[int]]:
    """The generations of each service of a snapshot."""
    arrays: dict[str, frozenset[int]] = {}
    for service in site.now.services:
        key = f"{service.tenant}/{service.name}"
        arrays[key] = arrays.get(key, frozenset()) | {service.array_job_id}
    return arrays


def _of_site(site: SiteInputs, arrays: frozenset[int]) -> _Known:
    """The newest of a service's generations."""
    array = max(arrays)
    view = next(service for service in site.now.services if service.array_job_id == array)
    job = next((job for job in site.now.jobs if job.array_job_id == array), None)
    # Models of a pool have names of their own, which a snapshot does not have.
    keys = {"name": view.name, "tenant": view.tenant, "model_repository": "/", "model": view.name}
    spec = service_spec({**view.values, **keys})
    if job is not None and spec.profile is None:
        # Admission has chosen one.
        spec = _with_profile(spec, next(iter(job.gpus), ""))
    partitions = () if job is None else tuple(job.partition.split(","))
    return _Known(spec, _NOT_MEASURED, partitions, arrays)


def _with_profile(spec: ServiceSpec, profile: str) -> ServiceSpec:
    return spec.model_copy(update={"profile": profile, "need_gib": None}) if profile else spec


def _of_file(file: Path, arrays_of: Mapping[str, frozenset[int]]) -> tuple[str, _Known]:
    """The service of a file, which takes the place of the site's own of that name."""
    tables = read_tables(file)
    table = tables.get(TABLE)
    if not isinstance(table, dict) or not tables.keys() <= {TABLE, ENGINE}:
        raise InvalidInputError(
            Code.SERVICE,
            f"{file}: it must hold a table [{TABLE}], maybe one [{ENGINE}], and nothing else.",
            "See: slicewise service schema --example",
        )
    spec = service_spec(table)
    try:
        engine = _Engine.model_validate(tables.get(ENGINE, {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join((ENGINE, *map(str, first["loc"])))
        raise InvalidInputError(
            Code.SERVICE,
            f"{file}: {quoted(where)}: {first['msg']}.",
            f"[{ENGINE}] has loads_s = [40.0], seconds = {{ 1 = 0.8, 8 = 1.9 }}, or both.",
        ) from None
    key = f"{spec.tenant}/{spec.name}"
    return key, _Known(
        spec,
        EngineFigures(engine.loads_s, engine.seconds, engine.model_load_s or 0.0),
        (spec.partition,) if spec.partition else (),
        arrays_of.get(key, frozenset()),
        is_of_file=True,
    )


def _named(text: str, keys: AbstractSet[str]) -> tuple[str, Path]:
    key, equals, file = text.partition("=")
    if not equals or not file:
        raise _refused(
            f"--requests {quoted(text)} names no file.", "Write --requests TENANT/SERVICE=FILE."
        )
    if key not in keys:
        names = ", ".join(sorted(keys)) or "none"
        raise _refused(
            f"There is no service {quoted(key)} to simulate; services: {names}.",
            "A snapshot may have them under other names. --service FILE adds one.",
        )
    return key, Path(file)


def _simulated(
    site: SiteInputs, asked: Demand, traced: _Known, trace: RequestTrace, apart_s: float
) -> tuple[SimulatedService, Sequence[str]]:
    """Return the service as it is simulated, and what is to be said of it."""
    spec = _with_profile(traced.spec, traced.spec.profile or _cheapest(site, traced.spec))
    if spec.pool is not None:
        spec = with_model_mib(spec)
    last_s = asked.end_s + _TAIL_S - asked.start_s - apart_s
    kept: Sequence[TracedRequest] = [each for each in trace.requests if each.at_s < last_s]
    cost = spec.replica_shape.cost_millislices(site.settings.costs)
    small = smallness(cost, 60 * spec.time_limit_min)
    requests = traffic(kept, traced.figures, spec, asked.start_s + apart_s)
    partition = _partition(site, spec, traced.partitions)
    if traced.is_of_file:
        _check_time(site, spec, partition)
    service = SimulatedService(
        spec=spec,
        engine=requests.engine,
        arrivals_s=requests.arrivals_s,
        sizes=requests.sizes,
        user=spec.tenant,
        uid=0,
        partition=partition,
        applied_s=-inf,
        site_factor=site_factor(
            PriorityTerms(job_class=spec.priority_class, share=1.0, smallness=small),
            formula_of(site.settings.priority),
        ),
    )
    return service, tuple(_notes_of(service, trace, len(kept), requests.assumed))


def _notes_of(
    service: SimulatedService, trace: RequestTrace, kept: int, assumed: str
) -> Iterator[str]:
    key = service.key
    if not trace.requests:
        yield f"{key} gets no requests, and holds what its min_replicas say."
    else:
        length = length_text(trace.requests[-1].at_s)
        yield (
            f"{key}: {counted(kept, 'request')}, moved to begin with the simulated time; the"
            f" trace is {length} long."
        )
    if later := len(trace.requests) - kept:
        yield f"{key}: {counted(later, 'later request')} left out."
    yield from (f"{key}: {sentence}" for sentence in trace.assumed)
    if trace.unread:
        yield unread_text(trace.unread, f"the trace of {key}", trace.first_unread)
    if assumed and trace.requests:
        yield f"{key}: not measured, so assumed: {assumed}."


def _cheapest(site: SiteInputs, spec: ServiceSpec) -> str:
    """The cheapest type of the site that is known to have the memory that the service needs."""
    need_mib, settings = 1024 * (spec.need_gib or 0), site.settings
    kinds = {kind for node in site.cluster.nodes for kind in node.gpus}
    fitting = [
        kind
        for kind in kinds & settings.costs.keys()
        if (settings.memory_mib.get(kind) or 0) >= need_mib
    ]
    if not fitting:
        raise _refused(
            f"{spec.tenant}/{spec.name}: no GPU of the site is known to have"
            f" {spec.need_gib:g} GiB.",
            "Give the service a profile.",
        )
    return min(fitting, key=lambda kind: (settings.costs[kind], kind))


def _partition(site: SiteInputs, spec: ServiceSpec, named: Sequence[str]) -> str:
    """The first of the partitions that manages GPUs of the service's type."""
    managed, shape = site.settings.cluster.partitions, spec.replica_shape
    for name in named or managed:
        gpu_nodes = sum(
            name in node.partitions and node.gpus.get(shape.gres_type or "", 0) >= shape.gpus
            for node in site.cluster.nodes
        )
        if name in managed and gpu_nodes >= shape.nodes:
            return name
    raise _refused(
        f"{spec.tenant}/{spec.name}: no managed partition has nodes for a replica of"
        f" {shape.gpus} {shape.gres_type} on {shape.nodes}.",
        "Name another profile or partition in its file (--service).",
    )


def _check_time(site: SiteInputs, spec: ServiceSpec, partition: str) -> None:
    """Refuse a new service of which Slurm would not take the array (EnforcePartLimits)."""
    most_s = site.cluster.max_time_s.get(partition, inf)
    if site.now.enforces_limits and 60 * spec.time_limit_min > most_s:
        raise _refused(
            f"{spec.tenant}/{spec.name}: its lease of {spec.time_limit_min} min is above MaxTime of"
            f" partition {partition}, {most_s // 60:g} min: Slurm would refuse it"
            " (EnforcePartLimits).",
            "Give the service a shorter lease_s.",
        )


def _refused(message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(Code.USAGE, message, hint)
