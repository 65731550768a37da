"""Services on the model of Slurm, as tests need them: one tenant or two, one small cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import Scheduling, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.services.on_model import ServicesOnModel
from slicewise.simulation.rules.services.service import EngineModel, SimulatedService
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.attainable import Attainable
from slicewise.slurm_plugin.rules.services.slot_quotas import SlotQuotas

PARTITION, PROFILE, TENANT = "gpu", "1g.18gb", "nlp"
COSTS = {PROFILE: Millislices(1000)}
START_S = 1_700_000_000.0
PROMPT = Scheduling(interval_s=0.01, backfill_s=1.0, start_s=0.0, complete_s=0.3)
"""As the sandbox's Slurm: it looks for jobs to start as soon as anything has changed."""


@dataclass(frozen=True)
class Quota:
    """Of one tenant, in slices; ``borrowed`` is lent to it now, ``limit`` may be."""

    nominal: int
    limit: int = 0
    borrowed: int = 0


def a_service(arrivals_s: Iterable[float], **changes: Any) -> SimulatedService:
    """nlp/chat with requests at these seconds after ``START_S``, but for these fields.

    ``loads_s`` (by start) and ``service_s`` (by concurrency) are its engine's, ``spec`` its file's.
    """
    arrivals = tuple(START_S + at_s for at_s in arrivals_s)
    keys: dict[str, Any] = {
        "name": "chat",
        "tenant": TENANT,
        "model": "tokens",
        "model_repository": "/models",
        "profile": PROFILE,
        "max_replicas": 4,
        "concurrency": 2,
        "max_queue_s": 2.0,
        "keep_alive_s": 5,
        "lease_s": 600,
    } | changes.pop("spec", {})
    engine = EngineModel(changes.pop("loads_s", (3.0,)), changes.pop("service_s", (1.0,)))
    fields: dict[str, Any] = {
        "spec": ServiceSpec(**keys),
        "engine": engine,
        "arrivals_s": arrivals,
        "sizes": (1.0,) * len(arrivals),
        "user": "bob",
        "uid": 1001,
        "partition": PARTITION,
        "applied_s": START_S,
    }
    return SimulatedService(**fields | changes)


def quotas(of: Mapping[str, Quota]) -> SlotQuotas:
    """What slots may take under these quotas."""
    own = {name: 1000 * one.nominal for name, one in of.items()}
    limits = {name: 1000 * one.limit for name, one in of.items()}
    most = {name: own[name] + limits[name] for name in of}
    bounds = Attainable(own, limits, most)
    return SlotQuotas(own, bounds, {}, frozenset({PARTITION}), COSTS)


class SimulatedWorld:
    """A cluster of some nodes with ``gpus`` instances each, and services on it."""

    def __init__(
        self,
        *services: SimulatedService,
        gpus: int = 8,
        nodes: int = 1,
        of: Mapping[str, Quota] | None = None,
        every_s: float = 0.5,
        calm_s: float = 0.0,
        scheduling: Scheduling = PROMPT,
    ) -> None:
        of = {TENANT: Quota(4)} if of is None else of
        found = tuple(
            SimulatedNode(f"gpu{number}", frozenset({PARTITION}), {PROFILE: gpus})
            for number in range(1, nodes + 1)
        )
        cluster = SimulatedCluster("simulated", found, scheduling)
        self.model = SlurmModel(cluster, start_s=START_S, costs=COSTS)
        for name, quota in of.items():
            self.model.set_account(name, AccountLimits())
            self.limit(name, quota)
        self.services = ServicesOnModel(
            self.model, services, quotas(of), every_s=every_s, calm_s=calm_s
        )

    def limit(self, tenant: str, quota: Quota) -> None:
        """Set the limits of both QOS of a tenant, as they are while so much is lent to it."""
        own, lent = qos_name(tenant), borrowed_qos(tenant)
        self.model.set_qos(own, QosLimits(grp_tres={"billing": 1000 * quota.nominal}))
        self.model.set_qos(lent, QosLimits(grp_tres={"billing": 1000 * quota.borrowed}))

    def pass_until(self, at_s: float) -> int:
        """Let all that happens until so many seconds after the start happen; return the steps."""
        until_s, steps = START_S + at_s, 0
        while self.model.now_s < until_s:
            self.step(until_s)
            steps += 1
        return steps

    def step(self, until_s: float) -> None:
        """Let the next thing happen, but nothing after that Unix second."""
        known = (self.model.next_s(), self.services.next_s(), until_s)
        next_s = min(one for one in known if one is not None)
        self.model.advance(next_s)
        self.services.advance(next_s)
