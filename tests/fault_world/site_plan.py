"""Draws a world from a seed: the site, what its users do, and what goes wrong when."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from stand_ins.slurm_database import COSTS

from fault_world.faults import LONG_AFTER_S, SERVERS, Fault, Rates, seeded
from fault_world.virtual_time import START_S
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import Scheduling, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.services.service import EngineModel, SimulatedService
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Policy, Quota, Tenant

CLUSTER = "c"
LAYOUTS: tuple[Mapping[str, int], ...] = (
    {"1g.10gb": 7},
    {"3g.40gb": 2},
    {"1g.10gb": 3, "3g.40gb": 1},
)
BEGINS_S = 40.0
"""Seconds without a fault, in which the daemon starts for the first time."""
_STEPS_S = (-7200.0, -300.0, -20.0, -1.0, 1.0, 20.0, 300.0, 365 * 86_400.0)
"""By how much the clock of the daemon's host is set: a time server's step, hours and a year."""
_HAS_GUEST = 0.1
"""Of so many worlds a tenant runs a service on what others lend."""
_FEW = 4
"""Replicas that its own quota pays, at most."""
_UNBOUNDED = MAX_NOMINAL_MILLISLICES


@dataclass(frozen=True)
class Submitted:
    """A batch job that a user submits."""

    at_s: float
    account: str
    gpus: Mapping[str, int] = field(hash=False)
    run_s: float
    limit_s: int
    requeues: bool = True


@dataclass(frozen=True)
class NodeFails:
    at_s: float
    node: str
    back_s: float


@dataclass(frozen=True)
class NodeIsCut:
    """A node gets other GPUs, and its jobs end."""

    at_s: float
    node: str
    gpus: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class ClockIsSet:
    """The clock of the daemon's host is set by so many seconds."""

    at_s: float
    by_s: float


@dataclass(frozen=True)
class DaemonIsKilled:
    at_s: float


@dataclass(frozen=True)
class Applied:
    """A service is applied."""

    at_s: float
    service: SimulatedService


@dataclass(frozen=True)
class LauncherIsKilled:
    at_s: float


@dataclass(frozen=True)
class QuotaMoves:
    """An operator gives a part of one tenant's quota to another."""

    at_s: float
    giver: str
    taker: str
    millislices: int


@dataclass(frozen=True)
class BudgetIsSet:
    """An operator gives a tenant a budget."""

    at_s: float
    tenant: str
    amount_millislice_s: int


@dataclass(frozen=True)
class QuotaIsPlanned:
    """An operator plans another quota of a tenant for some time."""

    at_s: float
    tenant: str
    millislices: int
    first_s: float
    last_s: float


@dataclass(frozen=True)
class Refusal:
    """PostgreSQL refuses charges of some jobs for a while: those whose id is ``rest`` of 3."""

    first_s: float
    last_s: float
    rest: int


Event = (
    QuotaMoves
    | BudgetIsSet
    | QuotaIsPlanned
    | Submitted
    | Applied
    | NodeFails
    | NodeIsCut
    | ClockIsSet
    | DaemonIsKilled
    | LauncherIsKilled
)


@dataclass(frozen=True)
class SitePlan:
    """All that is decided before a world begins.

    Attributes:
        borrowers: jobs that borrow what is idle, once all is served.
        probe: a job of a lender that comes then; None if no tenant could lend.
        guest: a service on quota that others lend, and take back, in a tenth of worlds.
        refusal: charges that PostgreSQL refuses.
        undecided: jobs of which one may get no answer, once nothing fails any more.
        ends_s: seconds after which nothing goes wrong any more and nobody submits.
        restart_s: seconds after which a daemon that died is started again, at most.
        lag_s: the most seconds by which accounting shows an end late.
        pause_s: the most seconds of each pause that a program makes wherever it waits for
            anything, so that steps of its loops come in other orders.
    """

    seed: int
    cluster: SimulatedCluster
    policy: Policy
    events: tuple[Event, ...]
    rates: Mapping[str, Rates]
    borrowers: tuple[Submitted, ...]
    probe: Submitted | None
    undecided: tuple[Submitted, ...]
    guest: SimulatedService | None
    refusal: Refusal | None
    ends_s: float
    restart_s: float
    lag_s: float
    moving_s: float
    grace_s: int
    pause_s: float

    @property
    def latest_s(self) -> float:
        """The most seconds by which a call is late, or is made after it got no answer."""
        calls_s = (one.late_s if one.late else 0.0 for one in self.rates.values())
        later = (one.of.get(Fault.AFTERWARDS, 0.0) for one in self.rates.values())
        return max(calls_s) + (LONG_AFTER_S if any(later) else 0.0)

    @property
    def capacity_millislices(self) -> int:
        return sum(run_cost(node.gpus, COSTS) for node in self.cluster.nodes)


def drawn(seed: int) -> SitePlan:
    """Draw the world of this seed."""
    random = seeded("site", seed)
    nodes = tuple(
        SimulatedNode(f"n{i}", frozenset({"gpu"}), random.choice(LAYOUTS))
        for i in range(random.randint(2, 4))
    )
    scheduling = Scheduling(
        interval_s=random.choice((0.0, 2.0)),
        start_s=0.0,
        complete_s=random.choice((0.0, 1.0, 5.0)),
    )
    policy = _policy(random, sum(run_cost(node.gpus, COSTS) for node in nodes))
    cluster = SimulatedCluster(CLUSTER, nodes, scheduling, dict.fromkeys(policy, "root"))
    borrowers, probe = _probe(seeded("probe", seed), nodes, policy)
    ends_s = BEGINS_S + random.choice((90.0, 180.0, 300.0))
    return SitePlan(
        seed=seed,
        cluster=cluster,
        policy=policy,
        events=_in_order(
            *_events(random, nodes, policy, ends_s),
            *_policy_events(seeded("policy", seed), policy, ends_s),
        ),
        refusal=_refusal(seeded("refusal", seed), ends_s),
        rates=_rates(random, ends_s),
        borrowers=borrowers,
        probe=probe,
        undecided=_undecided(seeded("undecided", seed), nodes, policy),
        guest=_guest(seeded("guest", seed), nodes, policy, ends_s),
        ends_s=ends_s,
        restart_s=random.choice((2.0, 10.0, 40.0)),
        lag_s=random.choice((0.0, 5.0, 60.0)),
        moving_s=random.choice((1.0, 2.0, 5.0)),
        grace_s=random.choice((0, 10, 30)),
        pause_s=seeded("pause", seed).choice((0.0, 0.0, 0.01, 0.05)),
    )


def _policy(random: Random, capacity: int) -> Policy:
    names = ("a", "b", "c")[: random.randint(2, 3)]
    cuts = sorted(random.randrange(0, capacity + 1, 500) for _ in names[1:])
    parts = [b - a for a, b in zip((0, *cuts), (*cuts, capacity), strict=True)]
    bounds = random.choice(
        ((_UNBOUNDED,), (Millislices(0), Millislices(2000), Millislices(3500), _UNBOUNDED))
    )
    return {
        name: Tenant(
            name,
            "",
            Quota(
                Millislices(part),
                random.choice(bounds),
                random.choice(bounds),
            ),
        )
        for name, part in zip(names, parts, strict=True)
    }


def _probe(
    random: Random, nodes: tuple[SimulatedNode, ...], policy: Policy
) -> tuple[tuple[Submitted, ...], Submitted | None]:
    """Jobs of all tenants but one, which borrow, and a job of that one within its guarantee."""
    kind = random.choice([kind for node in nodes for kind in node.gpus])
    cost = COSTS[kind]
    lenders = [name for name, one in policy.items() if one.quota.nominal_millislices >= cost]
    if not lenders:
        return (), None
    lender = random.choice(lenders)
    total = sum(node.gpus.get(kind, 0) for node in nodes)
    others = [name for name in policy if name != lender and cost <= most_of(policy, name)]
    borrowers = [random.choice(others) for _ in range(total)] if others else []
    jobs = tuple(Submitted(0.0, name, {kind: 1}, 400.0, 480) for name in borrowers)
    return jobs, Submitted(0.0, lender, {kind: 1}, 20.0, 60)


def _undecided(
    random: Random, nodes: tuple[SimulatedNode, ...], policy: Policy
) -> tuple[Submitted, ...]:
    """Small jobs, one of each tenant that could start it."""
    kind = random.choice([kind for node in nodes for kind in node.gpus])
    able = [name for name in policy if COSTS[kind] <= most_of(policy, name)]
    return tuple(Submitted(0.0, name, {kind: 1}, 15.0, 60) for name in able)


def _guest(
    random: Random, nodes: tuple[SimulatedNode, ...], policy: Policy, ends_s: float
) -> SimulatedService | None:
    """A service of the tenant with the least quota, of one replica more than that pays, or two."""
    if random.random() >= _HAS_GUEST:
        return None
    name = min(policy, key=lambda one: policy[one].quota.nominal_millislices)
    total = sum((Counter(node.gpus) for node in nodes), Counter[str]())
    own = policy[name].quota.nominal_millislices
    loan = most_of(policy, name) - own
    kinds = [kind for kind in sorted(total) if COSTS[kind] <= loan and own // COSTS[kind] < _FEW]
    if not kinds:
        return None
    kind = random.choice(kinds)
    most = min(total[kind], own // COSTS[kind] + random.choice((1, 2)))
    return _service(random, ("guest", name, kind), (0, most), ends_s)


def most_of(policy: Policy, name: str) -> int:
    """Millislices that a tenant has at best. A job of more is admitted, and waits for ever."""
    own, others = policy[name].quota, [one.quota for one in policy.values() if one.name != name]
    lent = sum(min(one.lending_limit_millislices, one.nominal_millislices) for one in others)
    return own.nominal_millislices + min(own.borrowing_limit_millislices, lent)


def _events(
    random: Random, nodes: tuple[SimulatedNode, ...], policy: Policy, ends_s: float
) -> tuple[Event, ...]:
    def some_time() -> float:
        return round(random.uniform(BEGINS_S, ends_s - 1), 2)

    events: list[Event] = []
    jobs: list[Submitted] = []
    most = {kind: max(node.gpus.get(kind, 0) for node in nodes) for kind in COSTS}
    kinds = [kind for kind in COSTS if most[kind]]
    for _ in range(random.randint(4, 16)):
        kind = random.choice(kinds)
        run_s = round(random.choice((5.0, 20.0, 60.0, 120.0)) * random.uniform(0.5, 1.5), 1)
        limit_s = 60 * (int(run_s) // 60 + random.choice((0, 1, 2))) or 60
        gpus = {kind: random.randint(1, min(3, most[kind]))}
        is_plain = random.random() < 0.9
        account = random.choice(tuple(policy))
        if run_cost(gpus, COSTS) <= most_of(policy, account):
            jobs.append(Submitted(some_time(), account, gpus, run_s, limit_s, is_plain))
    services = _services(random, policy, most, ends_s)
    events += [one for one in jobs if _finds_room(one, most, services)]
    events += services
    for _ in range(random.choice((0, 0, 1, 2))):
        at_s = some_time()
        back_s = at_s + random.uniform(5, 100)
        events.append(NodeFails(at_s, random.choice(nodes).name, back_s))
    for _ in range(random.choice((0, 0, 1, 2))):
        events.append(NodeIsCut(some_time(), random.choice(nodes).name, random.choice(LAYOUTS)))
    for _ in range(random.choice((0, 0, 1, 2))):
        events.append(ClockIsSet(some_time(), random.choice(_STEPS_S) * random.uniform(0.5, 1.5)))
    for _ in range(random.choice((0, 0, 1, 2))):
        giver, taker = random.sample(tuple(policy), 2)
        amount = random.randrange(0, policy[giver].quota.nominal_millislices + 1, 500)
        events.append(QuotaMoves(some_time(), giver, taker, amount))
    events += [DaemonIsKilled(some_time()) for _ in range(random.choice((0, 0, 1, 2)))]
    events += [LauncherIsKilled(some_time()) for _ in range(random.choice((0, 0, 1)))]
    return _in_order(*events)


def _in_order(*events: Event) -> tuple[Event, ...]:
    """The events by time; where quota moves, none is planned: it could be more than all of it."""
    moves = any(isinstance(one, QuotaMoves) for one in events)
    kept = [one for one in events if not (moves and isinstance(one, QuotaIsPlanned))]
    return tuple(sorted(kept, key=lambda one: one.at_s))


def _policy_events(random: Random, policy: Policy, ends_s: float) -> list[Event]:
    """Budgets, some of which run out, and windows of the calendar."""
    found: list[Event] = []
    if random.random() < 0.3:
        amount = 1000 * random.choice((600, 6000, 10**9))
        at_s = random.uniform(BEGINS_S, ends_s)
        found.append(BudgetIsSet(at_s, random.choice(tuple(policy)), amount))
    if random.random() < 0.2:
        tenant = random.choice(tuple(policy))
        amount = random.randrange(0, policy[tenant].quota.nominal_millislices + 1, 500)
        first_s = random.uniform(BEGINS_S, ends_s)
        last_s = min(ends_s, first_s + random.choice((20.0, 60.0, 300.0)))
        at_s = random.uniform(BEGINS_S, first_s)
        found.append(QuotaIsPlanned(at_s, tenant, amount, first_s, last_s))
    return found


def _refusal(random: Random, ends_s: float) -> Refusal | None:
    if random.random() < 0.7:
        return None
    first_s = random.uniform(BEGINS_S, ends_s)
    return Refusal(first_s, ends_s, random.randrange(3))


def _finds_room(job: Submitted, most: Mapping[str, int], services: list[Applied]) -> bool:
    """Whether services leave it enough instances on a node; else it waits, and others behind it."""
    ((kind, count),) = job.gpus.items()
    specs = [one.service.spec for one in services if one.service.spec.profile == kind]
    return count <= most[kind] - sum(spec.min_replicas for spec in specs)


def _services(
    random: Random, policy: Policy, most: Mapping[str, int], ends_s: float
) -> list[Applied]:
    """Services that need no more than what their tenants and the nodes have, when nobody asks."""
    found: list[Applied] = []
    left = {name: tenant.quota.nominal_millislices for name, tenant in policy.items()}
    kinds = {kind: count for kind, count in most.items() if count}
    for number in range(random.choice((0, 1, 1, 2))):
        tenant, kind = random.choice(tuple(policy)), random.choice(tuple(kinds))
        # One instance stays for whoever is asked for.
        room = left[tenant] // COSTS[kind]
        if not room and not _may_borrow(policy, tenant, left, COSTS[kind]):
            continue
        least = max(0, min(random.choice((0, 0, 1, 2)), room, kinds[kind] - 1))
        left[tenant] -= least * COSTS[kind]
        kinds[kind] -= least
        at_s = round(random.uniform(BEGINS_S, BEGINS_S + 30), 2)
        arrivals = _arrivals(random, START_S + at_s, START_S + ends_s)
        most = random.randint(max(1, least), 4)
        service = _service(random, (f"s{number}", tenant, kind), (least, most), at_s, arrivals)
        found.append(Applied(at_s, service))
    return found


def _service(
    random: Random,
    words: tuple[str, str, str],
    replicas: tuple[int, int],
    at_s: float,
    arrivals_s: tuple[float, ...] = (),
) -> SimulatedService:
    """A service of a name, a tenant and a profile, with so many replicas at least and at most."""
    name, tenant, kind = words
    spec = ServiceSpec(
        name=name,
        tenant=tenant,
        model="model",
        model_repository="/models",
        profile=kind,
        min_replicas=replicas[0],
        max_replicas=replicas[1],
        concurrency=2,
        keep_alive_s=random.choice((5, 30)),
        lease_s=random.choice((60, 120, 600)),
    )
    engine = EngineModel((random.choice((2.0, 10.0)),), (random.choice((0.5, 3.0)),))
    return SimulatedService(
        spec=spec,
        engine=engine,
        arrivals_s=arrivals_s,
        sizes=(1.0,) * len(arrivals_s),
        user=f"user_{tenant}",
        uid=1000,
        partition="gpu",
        applied_s=START_S + at_s,
    )


def _may_borrow(policy: Policy, tenant: str, left: Mapping[str, int], cost: int) -> bool:
    """Whether the tenant finds that much on loan however much others need for themselves."""
    free = (one.quota.borrowing_limit_millislices == _UNBOUNDED for one in policy.values())
    lend = (one.quota.lending_limit_millislices == _UNBOUNDED for one in policy.values())
    return all(free) and all(lend) and sum(left.values()) >= cost


def _arrivals(random: Random, since_s: float, until_s: float) -> tuple[float, ...]:
    """Requests that come in bursts."""
    found: list[float] = []
    for _ in range(random.choice((1, 3, 6))):
        begin_s = random.uniform(since_s, until_s)
        rate = random.choice((0.2, 1.0, 3.0))
        at_s = begin_s
        while len(found) < 400 and at_s < min(until_s, begin_s + 60):
            found.append(at_s)
            at_s += random.expovariate(rate)
    return tuple(sorted(found))


def _rates(random: Random, ends_s: float) -> Mapping[str, Rates]:
    return {server: _rates_of(random, server, ends_s) for server in SERVERS}


def _rates_of(random: Random, server: str, ends_s: float) -> Rates:
    of = {
        fault: random.choice((0.0, 0.0, 0.01, 0.05))
        for fault in (Fault.DOWN, Fault.LOST, Fault.AFTERWARDS, Fault.PARTLY)
    }
    of |= {
        fault: random.choice((0.0, 0.0, 0.002, 0.01))
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
    }
    outages = []
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        begin_s = random.uniform(BEGINS_S, ends_s)
        outages.append((begin_s, min(ends_s, begin_s + random.choice((5.0, 30.0, 100.0)))))
    late = random.choice((0.0, 0.0, 0.05, 0.3))
    return Rates(of, late, random.choice((1.0, 6.0, 25.0)), tuple(outages))


def without(plan: SitePlan, **less: object) -> SitePlan:
    """The plan with other fields, to find out which of them a failure needs."""
    return replace(plan, **less)  # type: ignore[arg-type]
