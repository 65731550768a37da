"""The services of the mixed load: public traces' arrivals, on engines that ParvaGPU measured.

A request is a number of steps, one after the other; each step is a batch with one inference of
every request in the replica. How long a batch takes is ParvaGPU's, by model, slice and size. Every
request has as many steps as any other of its service: the models' inputs are of one size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.settings.file import PrioritySettings
from slicewise.launcher.rules.autoscale.policy import SERVICE_SHARE
from slicewise.simulation.rules.services.gateway_place import ServiceGateway
from slicewise.simulation.rules.services.request_figures import ServiceRecord, outcome
from slicewise.simulation.rules.services.request_queue import RunningReplica
from slicewise.simulation.rules.services.service import EngineModel, SimulatedService
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority import PriorityTerms, site_factor
from studies.autoscale import traces
from studies.autoscale.workload import Floats, Workload
from studies.capacity import Table, batch_s, tables

BEGIN_S = 1_500_000_000.0
"""Unix second in which the simulation begins."""
HOURS = 6.0
WARM_S = 3600.0
"""Seconds at the beginning that do not count: the site begins empty."""
PEAK_REPLICAS = 13
"""Full replicas of one slice that the busiest minute of each service needs."""
SLOWER = 2.0
"""How much longer than alone a request may take in a full replica."""
ATTAINMENT = 0.99
SLICE, WHOLE, PARTITION = "1g.10gb", "a100", "gpu"
COSTS_MILLISLICES = {SLICE: 1_000, WHOLE: 7_000}
FORMULA = formula_of(PrioritySettings())
_INSTANCES = {SLICE: "1g", WHOLE: "7g"}
_MOST_REPLICAS = 64
_ROOM = 2
"""max_replicas, in times of the fewest replicas that keep the aim at all times."""
_LOADS = 500
_MINUTE_S = 60.0
_UID = 5_000


@dataclass(frozen=True)
class MixedService:
    """One service of the load, on slices and on whole GPUs.

    Attributes:
        trace, model: where its arrivals and its engine are from.
        slices: on slices; ``whole``: the same requests on whole GPUs.
        replicas, gpus: the fewest of each that, always on, keep the aim for 99 % of the requests.
        work_millislice_s: what a request takes of full replicas of one slice.
    """

    trace: str
    model: str
    slices: SimulatedService
    whole: SimulatedService
    replicas: int
    gpus: int

    @property
    def work_millislice_s(self) -> float:
        """What a request takes of a full replica of one slice: the same under every system."""
        return COSTS_MILLISLICES[SLICE] * self.slices.engine.service_s[-1] / places(self.slices)


def places(service: SimulatedService) -> int:
    """Requests that a replica works on at the same time."""
    found = service.spec.concurrency
    return found if isinstance(found, int) else 1


def mixed_services(folder: Path, seed: int, hours: float = HOURS) -> tuple[MixedService, ...]:
    """One service for each stored trace, with ParvaGPU's models in alphabetical order."""
    measured = tables()
    models = sorted({name.split()[0] for name in measured})
    return tuple(
        _service(number, name, model, measured, repeated(traces.stored(name, folder, seed), hours))
        for number, (name, model) in enumerate(zip(traces.STORED, models, strict=False), 1)
    )


def repeated(workload: Workload, hours: float) -> Workload:
    """The workload for so many hours: its beginning, or several times one after the other."""
    until_s = hours * 3600
    times = ceil(until_s / workload.duration_s)
    every = [workload.arrivals_s + nth * workload.duration_s for nth in range(times)]
    arrivals = np.concatenate(every)
    return replace(workload, arrivals_s=arrivals[arrivals < until_s], duration_s=int(until_s))


def _service(
    number: int, name: str, model: str, measured: Mapping[str, Table], workload: Workload
) -> MixedService:
    table, whole = (measured[f"{model} {_INSTANCES[kind]}"] for kind in (SLICE, WHOLE))
    concurrency = fullest(table, SLOWER * batch_s(table, 1))
    full_s = PEAK_REPLICAS * concurrency / busiest_rate(workload.arrivals_s)
    steps = full_s / batch_s(table, concurrency)
    base = _simulated(number, name, workload, full_s / SERVICE_SHARE)
    on_slices = _on(base, SLICE, table, concurrency, steps)
    on_whole = _on(base, WHOLE, whole, fullest(whole, full_s / steps), steps)
    until_s = BEGIN_S + workload.duration_s
    replicas = fewest(on_slices, until_s)
    spec = on_slices.spec.model_copy(update={"max_replicas": _ROOM * replicas})
    return MixedService(
        trace=name,
        model=model,
        slices=replace(on_slices, spec=spec),
        whole=on_whole,
        replicas=replicas,
        gpus=fewest(on_whole, until_s),
    )


def fullest(table: Table, within_s: float) -> int:
    """The size of a batch that answers most a second, of those that take no longer than that."""
    fit = (size for size in range(1, table[-1][0] + 1) if batch_s(table, size) <= within_s)
    return max(fit, key=lambda size: size / batch_s(table, size), default=1)


def busiest_rate(arrivals_s: Floats) -> float:
    """Requests a second in the busiest minute."""
    return float(np.bincount((arrivals_s / _MINUTE_S).astype(int)).max() / _MINUTE_S)


def _simulated(number: int, name: str, workload: Workload, p95_s: float) -> SimulatedService:
    arrivals = tuple((BEGIN_S + workload.arrivals_s).tolist())
    spec = ServiceSpec(
        name=name,
        tenant=f"serve{number}",
        model=name,
        model_repository="/models",
        profile=SLICE,
        max_replicas=_MOST_REPLICAS,
        p95_ms=round(1000 * p95_s),
    )
    return SimulatedService(
        spec=spec,
        engine=EngineModel(tuple(workload.starts.load_s[:_LOADS].tolist()), (1.0,)),
        arrivals_s=arrivals,
        sizes=(1.0,) * len(arrivals),
        user=spec.tenant,
        uid=_UID + number,
        partition=PARTITION,
        applied_s=BEGIN_S,
        site_factor=site_factor(PriorityTerms(share=1.0), FORMULA),
    )


def _on(
    base: SimulatedService, kind: str, table: Table, concurrency: int, steps: float
) -> SimulatedService:
    """The service in replicas of that kind."""
    seconds = tuple(steps * batch_s(table, size) for size in range(1, concurrency + 1))
    update = {"profile": kind, "concurrency": concurrency}
    return replace(
        base,
        spec=base.spec.model_copy(update=update),
        engine=replace(base.engine, service_s=seconds),
    )


def counts_from_s(until_s: float) -> float:
    """From when on figures count: after an hour, or a third of a short run."""
    return BEGIN_S + min(WARM_S, (until_s - BEGIN_S) / 3)


def fewest(service: SimulatedService, until_s: float) -> int:
    """The fewest replicas that, always on, keep the aim for 99 % of the requests that count."""
    low, high = 1, _MOST_REPLICAS
    since_s = counts_from_s(until_s)
    while low < high:
        tried = (low + high) // 2
        found = outcome(always_on(service, tried, until_s), since_s=since_s, until_s=until_s)
        if found.attainment >= ATTAINMENT:
            high = tried
        else:
            low = tried + 1
    return low


def always_on(service: SimulatedService, replicas: int, until_s: float) -> ServiceRecord:
    """What becomes of the requests with so many replicas that are always on."""
    gateway = ServiceGateway(service)
    for _ in range(replicas):
        gateway.requests.open(RunningReplica())
    gateway.requests.pass_until(until_s)
    return recorded(service, gateway, [(BEGIN_S, until_s)] * replicas)


def recorded(
    service: SimulatedService,
    gateway: ServiceGateway,
    runs: Sequence[tuple[float, float]],
    changes_s: Sequence[float] = (),
) -> ServiceRecord:
    """What a service left behind at its gateway."""
    return ServiceRecord(
        service=service,
        waits_s=gateway.requests.waits,
        answers_s=gateway.requests.answers,
        runs=runs,
        changes_s=changes_s,
        cost_millislices=COSTS_MILLISLICES[service.spec.profile or SLICE],
    )
