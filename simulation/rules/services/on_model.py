"""Services on the model of Slurm: the launcher's turns, and what the daemon makes of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from slicewise.cluster.language.jobs import JobView, RunOfJob
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.pools import sharing
from slicewise.cluster.language.service import limit_min
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, EvictRequest, ServiceView
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.pools.busy import Parts, Run
from slicewise.launcher.rules.turn.service import ServicePlan
from slicewise.launcher.rules.turn.state import DesiredSlots
from slicewise.simulation.rules.services.gateway_place import ServiceGateway
from slicewise.simulation.rules.services.launcher import ServiceLauncher
from slicewise.simulation.rules.services.pool_gateway import PoolGateway
from slicewise.simulation.rules.services.pool_launcher import PoolLauncher
from slicewise.simulation.rules.services.pool_requests import pass_together
from slicewise.simulation.rules.services.request_figures import (
    MINUTE_S,
    ServiceOutcome,
    ServiceRecord,
    outcome,
)
from slicewise.simulation.rules.services.service import SimulatedService, array_of
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, holder_of, qos_name
from slicewise.slurm_plugin.rules.services.eviction import Evictions
from slicewise.slurm_plugin.rules.services.leases import Spare, lease_of, leased, plan_leases
from slicewise.slurm_plugin.rules.services.slot_actions import (
    SlotActions,
    TenantCapacity,
    after,
    plan_desired,
    plan_guard,
    waits_beyond_quota,
)
from slicewise.slurm_plugin.rules.services.slot_quotas import SlotQuotas
from slicewise.slurm_plugin.rules.services.slot_recovery import SlotRecovery
from slicewise.slurm_plugin.rules.services.state import Observation, services

_LEASES_S = 5.0
"""Seconds between two looks at leases, as in the daemon."""


@dataclass(slots=True, eq=False)
class _Pool:
    """Services that share replicas.

    Attributes:
        gateways: what they have at the gateway, by ``tenant/service``.
        running: those that were applied.
    """

    launcher: PoolLauncher
    gateways: dict[str, PoolGateway] = field(default_factory=dict)
    running: "list[_Running]" = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Running:
    """A service that was applied.

    Attributes:
        cost_millislices: of one replica.
        view: its slots as they were seen last, with what has been done to them since.
        desired: the slots that the launcher wants; ``urgency``: how much its backlog presses.
        due_s: when its next turn is due.
        records: Slurm's of its array, as its last turn saw them.
        calm_s: until when no turn is made unless something moves.
        changes_s: when a replica was released, withdrawn or told to end.
        pool: the services with which it shares replicas; None if it shares none.
        pooled: slice-seconds of others' replicas that it has used, by when that minute began; below
            0 others of its own.
    """

    service: SimulatedService
    array: int
    cost_millislices: int
    gateway: ServiceGateway
    launcher: ServiceLauncher | PoolLauncher
    due_s: float
    view: ServiceView
    desired: frozenset[int] = frozenset()
    urgency: float = 0.0
    records: tuple[JobView, ...] = ()
    calm_s: float = 0.0
    leases_s: float = 0.0
    recovery: SlotRecovery = field(default_factory=SlotRecovery)
    changes_s: list[float] = field(default_factory=list)
    pool: _Pool | None = None
    pooled: dict[float, float] = field(default_factory=lambda: defaultdict(float))


class ServicesOnModel:
    """Services that follow their requests on a model of Slurm.

    Whoever drives it lets the model pass first: ``model.advance(t)``, then ``advance(t)``, with the
    earlier of both ``next_s`` as t.

    Attributes:
        evictions: the daemon's memory of replicas that were told to end. A round of quotas tells it
            ``evictions.end(victims, over, services.views, grace_s)`` and ``evictions.wait_on``.
    """

    def __init__(
        self,
        model: SlurmModel,
        services: Iterable[SimulatedService],
        quotas: SlotQuotas,
        *,
        every_s: float = 1.0,
        calm_s: float = 0.0,
        memory_mib: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        """``every_s``: seconds between two turns for a service for which something moves;
        ``calm_s`` the same while its replicas just work: no request waits, no slot changes;
        ``memory_mib``: of a GPU, by GRES type.
        """
        self._model, self._quotas = model, quotas
        self._every_s, self._calm_s = every_s, calm_s
        self._memory_mib = memory_mib
        self._coming = sorted(services, key=lambda service: (service.applied_s, service.key))
        self._running: list[_Running] = []
        self._pools = dict[str, _Pool]()
        members = ((m.key, m.user, m.spec.values()) for m in self._coming if m.spec.pool)
        for keys in sharing(members):
            self._pools |= dict.fromkeys(keys, _Pool(PoolLauncher(every_s)))
        self._jobs_of: tuple[Sequence[JobView], Mapping[str, Sequence[JobView]]] = ((), {})
        self.evictions = Evictions(ALONE, lambda: self._model.now_s)

    def set_quotas(self, quotas: SlotQuotas) -> None:
        """Take the quotas that are in force from now on."""
        self._quotas = quotas

    @property
    def views(self) -> tuple[ServiceView, ...]:
        """The services as they were seen last, by array."""
        return tuple(service.view for service in self._running)

    @property
    def urgencies(self) -> Mapping[int, float]:
        """How much each service's backlog presses, as its launcher last said, by array."""
        return {service.array: service.urgency for service in self._running}

    @property
    def site_factors(self) -> Mapping[int, int]:
        """The site_factor with which each service was submitted, by array."""
        return {service.array: service.service.site_factor for service in self._running}

    def next_s(self) -> float | None:
        """When something is due next; None if nothing ever is, unless something else happens."""
        applied_s = self._coming[0].applied_s if self._coming else inf
        due_s = min((service.due_s for service in self._running), default=inf)
        next_s = min(applied_s, due_s)
        return None if next_s == inf else next_s

    def advance(self, until_s: float) -> None:
        """Make the turns that are due; the model has passed until then already."""
        while self._coming and self._coming[0].applied_s <= until_s:
            self._apply(self._coming.pop(0))
        for service in self._running:
            if service.due_s <= until_s:
                self._turn(_together(service), until_s)

    def leave(self, runs: frozenset[RunOfJob], why: str) -> None:
        """Tell those of these runs that are replicas to move, as the daemon is asked to."""
        self.evictions.take(EvictRequest(runs=tuple(runs), why=why), self.views)
        for service in self._running:
            if any((slot.job_id, slot.start_s) in runs for slot in service.view.slots):
                service.calm_s = 0.0

    def outcomes(self, since_s: float, until_s: float) -> tuple[ServiceOutcome, ...]:
        """Return what became of each service between two moments, of which none is to come."""
        return tuple(
            outcome(record, since_s=since_s, until_s=until_s) for record in self.records(until_s)
        )

    def records(self, until_s: float) -> tuple[ServiceRecord, ...]:
        """Return what each service left behind up to a moment that is not to come."""
        for service in self._running:
            requests = [member.gateway.requests for member in _together(service)]
            pass_together(requests, max(until_s, *(queue.now_s for queue in requests)))
        return tuple(map(_recorded, self._running))

    def gateway(self, key: str) -> ServiceGateway:
        """Return what is at the gateway of ``tenant/service``; KeyError unless it was applied."""
        return {service.service.key: service.gateway for service in self._running}[key]

    def _apply(self, service: SimulatedService) -> None:
        asked = replace(array_of(service, len(self._running) + 1), finishes=True)
        array = self._model.submit(asked)
        cost = service.spec.replica_shape.cost_millislices(self._quotas.costs)
        pool, at_s = self._pools.get(service.key), service.applied_s
        gateway: ServiceGateway
        launcher: ServiceLauncher | PoolLauncher
        if pool is None:
            gateway, launcher = ServiceGateway(service), ServiceLauncher(service, self._every_s)
        else:
            gateway, launcher = PoolGateway(service, pool.gateways), pool.launcher
        view = self._look(service, array, gateway)
        running = _Running(service, array, cost, gateway, launcher, at_s, view, pool=pool)
        self._running.append(running)
        if pool is not None:
            pool.running.append(running)

    def _turn(self, together: Sequence[_Running], now_s: float) -> None:
        """Make a turn for services that share replicas, or for one that shares none."""
        pass_together([service.gateway.requests for service in together], now_s)
        if (pool := together[0].pool) is not None:
            _note_use(pool, now_s)
        due_s = now_s + self._every_s
        if not all(self._is_calm(service, now_s) for service in together):
            due_s = self._decide(together, now_s)
        for service in together:
            service.due_s = due_s

    def _decide(self, together: Sequence[_Running], now_s: float) -> float:
        """Let the launcher decide, and carry it out; return when its next turn is due."""
        for service in together:
            service.records, service.calm_s = self._records(service.array), now_s + self._calm_s
            look = self._look(service.service, service.array, service.gateway)
            service.view = self._shown(service.gateway.follow(look))
            self._guard(service, now_s)
        plans = _decided(together, now_s)
        for service, plan in plans:
            service.gateway.apply(plan.route)
        for service, plan in plans:
            if isinstance(service.gateway, PoolGateway):
                service.gateway.load(service.array, plan.models)
            desired = plan.desired_by_array.get(service.array)
            if desired is not None:
                service.launcher.hear(service.array, desired, self._bring(service, desired, now_s))
        for service in together:
            self._follow_runs(service, now_s)
        queues = [service.gateway.requests for service in together]
        next_s = min(requests.arrivals[requests.arrived] for requests in queues)
        due_s = together[0].launcher.due_s(now_s, next_s)
        is_ending = any(service.gateway.is_ending for service in together)
        return min(due_s, now_s + self._every_s) if is_ending else due_s

    def _follow_runs(self, service: _Running, now_s: float) -> None:
        """Extend leases that are due, and end the runs that have done what they had to do."""
        if now_s >= service.leases_s and service.gateway.runs:
            self._extend(service, now_s)
            service.leases_s = now_s + _LEASES_S
        if over := service.gateway.finished(self._model.kill_wait_s):
            self._model.finish(Tasks(service.array, over))

    def _is_calm(self, by_holder: _Running, now_s: float) -> bool:
        """Whether a turn would see what the last one has seen, but for requests that are served."""
        if (
            now_s >= by_holder.calm_s
            or by_holder.launcher.rests is not None
            or by_holder.gateway.requests.queue
        ):
            return False
        told = self.evictions.ending or self.evictions.has_waiting
        told = told or any(slot.ends_in_s is not None for slot in by_holder.view.slots)
        gateway = by_holder.gateway
        loads = isinstance(gateway, PoolGateway) and gateway.is_loading
        moves = (
            loads
            or gateway.is_ending
            or any(
                run.mode is not ServerMode.READY and run.loaded_s <= now_s
                for run in gateway.runs.values()
            )
        )
        return not (told or moves) and self._records(by_holder.array) == by_holder.records

    def _look(self, service: SimulatedService, array: int, gateway: ServiceGateway) -> ServiceView:
        """The service as the daemon derives it from Slurm's records."""
        records = self._records(array)
        used = {node for job in records for node in job.nodes}
        look = Observation(
            self._model.now_s,
            records,
            tuple(node for node in self._model.nodes if node.name in used) if used else (),
            gateway.steps(records),
            {array: service.spec.values()},
        )
        (view,) = services(look, self._quotas.costs, self._memory_mib)
        return view

    def _shown(self, view: ServiceView) -> ServiceView:
        shown = (self.evictions.shown(view.array_job_id, slot) for slot in view.slots)
        return view.model_copy(update={"slots": tuple(shown)})

    def _records(self, array: int) -> tuple[JobView, ...]:
        """Slurm's records of an array."""
        return self._model.array(array)

    def _own_jobs(self, tenant: str) -> Sequence[JobView]:
        """Slurm's records of the jobs that count for a tenant."""
        jobs = self._model.jobs
        if self._jobs_of[0] is not jobs:
            service: dict[str, list[JobView]] = defaultdict(list)
            for job in jobs:
                service[holder_of(job)].append(job)
            self._jobs_of = (jobs, service)
        return self._jobs_of[1].get(tenant, ())

    def _guard(self, service: _Running, now_s: float) -> None:
        """Hold what must not start, bring back what has ended: as at each look of the daemon."""
        view = service.view
        service.recovery.follow((view,), now_s)
        revive = service.recovery.due(service.array, now_s)
        room = self._room(view) if waits_beyond_quota(view) else None
        plan = plan_guard(view, service.desired - self.evictions.kept(view), revive, room)
        self._carry_out(service, plan, now_s)

    def _room(self, view: ServiceView) -> TenantCapacity | None:
        borrows = not self.evictions.waits(view.tenant)
        own_jobs = self._own_jobs(view.tenant)
        return self._quotas.room(view, own_jobs, self.views, borrows=borrows)

    def _bring(self, service: _Running, desired: DesiredSlots, now_s: float) -> DesiredSlotsAnswer:
        """Bring the slots to those desired, within quota, as the daemon does."""
        plan = plan_desired(service.view, desired.run, self._room(service.view))
        service.desired, service.urgency = desired.run, desired.urgency
        self._carry_out(service, plan, now_s)
        return DesiredSlotsAnswer(
            released=tuple(sorted(plan.release)),
            held=tuple(sorted(plan.hold | plan.requeue_hold)),
            kept_back=tuple(sorted(plan.kept_back)),
            note=plan.note,
        )

    def _carry_out(self, service: _Running, plan: SlotActions, now_s: float) -> None:
        """Carry a plan out in the order in which the daemon does."""
        if not plan.acts:
            return
        view, model = service.view, self._model
        for qos, moved in (
            (qos_name(view.tenant), plan.guarantee),
            (borrowed_qos(view.tenant), plan.borrow),
        ):
            if moved:
                model.update(Tasks(service.array, moved), JobChange(qos=qos))
        for act, slots in (
            (model.requeue_hold, plan.requeue_hold),
            (model.requeue_hold, plan.revive),
            (model.hold, plan.hold),
        ):
            if slots:
                act(Tasks(service.array, slots))
        if plan.release:
            model.release(Tasks(service.array, plan.release), limit_min(lease_of(view)))
        released = {slot.index for slot in view.slots if slot.state == "released"}
        changed = plan.release | plan.requeue_hold | (plan.hold & released)
        service.changes_s += [now_s] * len(changed)
        service.view = after(view, plan)

    def _extend(self, service: _Running, now_s: float) -> None:
        """Extend the leases of replicas that are wanted."""
        view, records = service.view, self._records(service.array)
        slots = leased((view,), records, {service.array: service.desired}, 0.0)
        plan = plan_leases(slots, {}, Spare(), now_s, self._quotas.costs, extends=True)
        for (array, index, _), limit in plan.limits_min.items():
            target: Target = Tasks(array, frozenset({index}))
            self._model.update(target, JobChange(time_limit_min=limit))


def _together(service: _Running) -> Sequence[_Running]:
    """The services with which one shares replicas, itself among them."""
    return [service] if service.pool is None else service.pool.running


def _decided(together: Sequence[_Running], now_s: float) -> Sequence[tuple[_Running, ServicePlan]]:
    """What the launcher decides for these services; nothing while all are at rest."""
    launcher = together[0].launcher
    if isinstance(launcher, ServiceLauncher):
        (service,) = together
        plan = launcher.decide(service.view, service.gateway, now_s)
        return [] if plan is None else [(service, plan)]
    plans = launcher.decide(
        {
            member.service.key: (member.service, member.view, member.gateway)
            for member in together
            if isinstance(member.gateway, PoolGateway)
        },
        now_s,
    )
    keyed = ((member, member.service.key) for member in together)
    return [(member, plans[key]) for member, key in keyed if key in plans]


def _note_use(pool: _Pool, now_s: float) -> None:
    """Note which services have used replicas of others since the last look."""
    parts = dict[Run, Parts]()
    by_key = {service.service.key: service for service in pool.running}
    by_array = {service.array: service for service in pool.running}
    for service in pool.running:
        parts |= pool.gateways[service.service.key].parts(service.array)
    for (array, key), used_s in pool.launcher.used(parts, now_s).items():
        slice_s = used_s * by_array[array].cost_millislices / 1000
        minute_s = now_s // MINUTE_S * MINUTE_S
        by_key[key].pooled[minute_s] += slice_s
        by_array[array].pooled[minute_s] -= slice_s


def _recorded(service: _Running) -> ServiceRecord:
    gateway = service.gateway
    requests = gateway.requests
    return ServiceRecord(
        service=service.service,
        waits_s=tuple(requests.waits),
        answers_s=tuple(requests.answers),
        runs=(*gateway.past, *((run.began_s, inf) for run in gateway.runs.values())),
        changes_s=tuple(service.changes_s),
        cost_millislices=service.cost_millislices,
        loads_s=tuple(gateway.loads_s) if isinstance(gateway, PoolGateway) else (),
        pooled=service.pooled,
    )
