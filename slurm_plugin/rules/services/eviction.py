"""Remembers which replicas were told to end: in memory, and only for a while."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from slicewise.cluster.language.jobs import RunOfJob
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.messages import EvictRequest, ServiceView, SlotView
from slicewise.slurm_plugin.rules.quota.types import Recall
from slicewise.slurm_plugin.rules.services.hold_back import Lenders, still_waiting
from slicewise.slurm_plugin.rules.services.leases import SlotRunKey
from slicewise.slurm_plugin.rules.services.slot_actions import borrowed_waiting
from slicewise.slurm_plugin.rules.services.state import to_be_replaced

EVICTION_S = 30.0
"""Seconds after which a request to leave expires. The process that wants replicas to go repeats its
request every few seconds."""
AGAIN_S = 300.0
"""Seconds within which lenders that take slices back again have work that comes and goes."""
REST_S = 30.0
"""Seconds for which a tenant's slots then go on waiting after there is no lender left to wait for.
Without this pause such lenders make up to a quarter more replicas go, for 0.1 % more slices in use;
with one after each taking back no fewer go (replays of traces)."""


_RUNS = frozenset({"starting", "running"})


@dataclass(frozen=True)
class Eviction:
    """A run of a slot that was told to end now.

    Attributes:
        service: the service's ``tenant/name``.
        why: the reason, for people.
    """

    job_id: int
    service: str
    why: str


class Evictions:
    """Runs of slots that shall end, and why: now, or once other replicas serve in their place."""

    def __init__(self, leader: Leader, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds, and is never set back."""
        self._leader, self._clock = leader, clock
        self._told: dict[SlotRunKey, tuple[float, str]] = {}
        self._ends: dict[SlotRunKey, Eviction] = {}
        self._waits: dict[str, float] = {}
        self._over_s: dict[str, float] = {}
        self._lenders: Lenders = {}

    def take(self, request: EvictRequest, services: Iterable[ServiceView]) -> DoneAnswer:
        """Take a request that replicas leave once others serve in their place.

        Raises UnreachableError (SW-DAEMON-STANDBY): only the daemon that leads tells the launcher.
        """
        self._leader.require()
        now_s, asked = self._clock(), frozenset(request.runs)
        still_told = {key: told for key, told in self._told.items() if told[0] > now_s}
        new = {
            (service.array_job_id, slot.index, slot.start_s): (now_s + EVICTION_S, request.why)
            for service in services
            for slot in service.slots
            if (slot.job_id, slot.start_s) in asked
        }
        self._told = still_told | new
        return DoneAnswer()

    def end(
        self,
        victims: Mapping[RunOfJob, str],
        over: Mapping[str, int],
        services: Iterable[ServiceView],
        grace_s: float,
    ) -> tuple[Eviction, ...]:
        """Tell the runs ``victims`` to end now; return those that are told for the first
        time.

        A run that was told stays told until it has ended, while its tenant holds too much even
        without the ``victims`` (``over``, millislices). From the first time on its tenant's slots
        wait (``waits``), for ``grace_s`` at most.
        """
        before, self._ends = self._ends, {}
        left = Counter(over)
        runs = sorted(_runs(services), key=lambda run: (run[2], run[1].start_s) not in victims)
        for service, slot, job_id in runs:
            key, run = (service.array_job_id, slot.index, slot.start_s), (job_id, slot.start_s)
            is_told = key in before and left[service.tenant] > 0
            if run in victims or is_told:
                left[service.tenant] -= service.cost_millislices
                name = f"{service.tenant}/{service.name}"
                why = before[key].why if key in before else victims[run]
                self._ends[key] = Eviction(job_id, name, why)
                if key not in before:
                    self._waits[service.tenant] = self._clock() + grace_s
                    self._lenders = {service.tenant: frozenset(), **self._lenders}
        return tuple(told for key, told in self._ends.items() if key not in before)

    def wait_on(self, recalls: Iterable[Recall], starting: Collection[str]) -> None:
        """Let slots wait as long as there is a lender to wait for (see ``hold_back``).

        A tenant's wait for ``REST_S`` more where its last one was over within ``AGAIN_S``.
        """
        now_s = self._clock()
        going = {tenant_of(told.service) for told in self._ends.values()}
        before = self._lenders
        within = {name: lenders for name, lenders in before.items() if self.waits(name)}
        self._lenders = still_waiting(within, going, recalls, starting)
        for name in before.keys() - self._lenders.keys():
            is_again = now_s - self._over_s.get(name, -inf) < AGAIN_S
            self._waits[name] = min(self._waits[name], now_s + (REST_S if is_again else 0.0))
            self._over_s[name] = now_s

    @property
    def has_waiting(self) -> bool:
        """Whether any tenant's slots wait, so that ``wait_on`` has something to decide."""
        return bool(self._lenders)

    def waits(self, tenant: str) -> bool:
        """Whether the tenant's slots must not start on borrowed quota now.

        Where its limit has room, a slot would otherwise start on the slices that a replica of the
        same tenant has just left to a lender.
        """
        return self._waits.get(tenant, 0.0) > self._clock()

    def kept(self, service: ServiceView) -> frozenset[int]:
        """The service's slots that wait on borrowed quota and must not start on it now."""
        return borrowed_waiting(service) if self.waits(service.tenant) else frozenset()

    @property
    def ending(self) -> frozenset[RunOfJob]:
        """The runs that are told to end now."""
        return frozenset((told.job_id, start_s) for (_, _, start_s), told in self._ends.items())

    def shown(self, array_job_id: int, slot: SlotView) -> SlotView:
        """The slot as the launcher sees it: with the time and reason to leave, if it was told."""
        key = (array_job_id, slot.index, slot.start_s)
        if key in self._ends and slot.state in _RUNS:
            return slot.model_copy(update={"ends_in_s": 0, "ends_why": self._ends[key].why})
        until_s, why = self._told.get(key, (0.0, ""))
        return to_be_replaced(slot, why) if until_s > self._clock() else slot


def _runs(services: Iterable[ServiceView]) -> Iterator[tuple[ServiceView, SlotView, int]]:
    """Runs that may still be told to end: service, slot and job id."""
    for service in services:
        for slot in service.slots:
            if slot.job_id is not None and slot.state in _RUNS:
                yield service, slot, slot.job_id
