"""A service of the simulator: what is submitted, what its engine can do, which requests come."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobTag
from slicewise.cluster.language.service import ServiceSpec
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.slurm_plugin.rules.common.qos_names import qos_name


@dataclass(frozen=True)
class EngineModel:
    """How the server of one replica behaves on its GPUs.

    Attributes:
        loads_s: seconds from the start of a replica's job until its model answers: the n-th start
            takes the n-th of them, and after the last of them it is the first's turn again.
        service_s: mean seconds of a request in a replica that works on 1, 2, ... requests; the last
            counts for more, too.
        model_load_s: seconds until a replica of a pool that runs has loaded the model; 0: as long
            as a start takes in the mean.
    """

    loads_s: tuple[float, ...]
    service_s: tuple[float, ...]
    model_load_s: float = 0.0

    @classmethod
    def measured(cls, loads_s: tuple[float, ...], seconds: Mapping[int, float]) -> "EngineModel":
        """An engine by a table: mean seconds of a request by requests at the same time.

        Between two rows the seconds rise in a straight line; below the first they are as in it.
        """
        counts = sorted(seconds)
        return cls(loads_s, tuple(_between(seconds, counts, n) for n in range(1, counts[-1] + 1)))

    @property
    def slower(self) -> tuple[float, ...]:
        """How much longer a request takes in a replica that works on 1, 2, ... requests."""
        return tuple(seconds / self.service_s[0] for seconds in self.service_s)


def _between(seconds: Mapping[int, float], counts: list[int], count: int) -> float:
    above = next(number for number in counts if number >= count)
    below = max((number for number in counts if number <= count), default=above)
    if above == below:
        return seconds[above]
    share = (count - below) / (above - below)
    return seconds[below] + share * (seconds[above] - seconds[below])


@dataclass(frozen=True)
class SimulatedService:
    """One service, as its owner applies it.

    Attributes:
        spec: with a profile and a number as its concurrency's bound, as for ``service apply``.
        arrivals_s: when its requests come, in Unix seconds, ascending.
        sizes: how much longer each request takes than the engine's mean one.
        partition: where its slots run.
        applied_s: when it is applied, in Unix seconds.
        site_factor: the part of its slots' priority that Slicewise sets.
    """

    spec: ServiceSpec
    engine: EngineModel
    arrivals_s: tuple[float, ...]
    sizes: tuple[float, ...]
    user: str
    uid: int
    partition: str
    applied_s: float
    site_factor: int = 0

    @property
    def key(self) -> str:
        """``tenant/service``, as in its address."""
        return f"{self.spec.tenant}/{self.spec.name}"

    def since(self, at_s: float) -> "SimulatedService":
        """The service as if it were applied then, if it was earlier; no request came before."""
        first = bisect_left(self.arrivals_s, at_s)
        return replace(
            self,
            applied_s=max(at_s, self.applied_s),
            arrivals_s=self.arrivals_s[first:],
            sizes=self.sizes[first:],
        )

    @property
    def within_s(self) -> float:
        """Seconds that its aim allows a request: to its place, or with ``p95_ms`` to its answer.

        Infinite without an aim: then each answer counts.
        """
        if self.spec.p95_ms is not None:
            return self.spec.p95_ms / 1000
        return inf if self.spec.max_queue_s is None else self.spec.max_queue_s


def array_of(service: SimulatedService, number: int) -> ModelRequest:
    """Return the array that ``slicewise service apply`` submits, as admission lets it pass.

    Its tasks are held: one slot each. ``number`` makes its tag's token another one than those of
    other services. Raises InvalidInputError (SW-SERVICE) for a service without a profile.
    """
    spec, shape = service.spec, service.spec.replica_shape
    if shape.gres_type is None:
        raise InvalidInputError(
            Code.SERVICE,
            f"{service.key} has no profile, and the simulator chooses none.",
            "Give the service a profile, such as 1g.10gb.",
        )
    return ModelRequest(
        user=service.user,
        uid=service.uid,
        account=spec.tenant,
        partition=service.partition,
        qos=qos_name(spec.tenant),
        gpus={shape.gres_type: shape.gpus},
        run_s=inf,
        nodes=shape.nodes,
        cpus=spec.cpus,
        memory_mib=spec.memory_mib,
        time_limit_s=60 * spec.time_limit_min,
        name=spec.name,
        admin_comment=JobTag(f"{number:08x}", spec.tenant, spec.name, spec.priority_class).text(),
        site_factor=service.site_factor,
        tasks=spec.max_replicas,
        held=True,
    )
