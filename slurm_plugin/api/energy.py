"""Takes from nodes' meters what boards took, and says whose it was."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import ALLOTTED, JobView
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Caller, Principal
from slicewise.slurm_plugin.api.carbon import grams_per_kwh
from slicewise.slurm_plugin.common.energy_requests import EnergyAnswer, EnergyLine, EnergyRequest
from slicewise.slurm_plugin.common.log import warn
from slicewise.slurm_plugin.ledger.energy import WantedEnergy
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.energy import (
    LINE_FIELDS,
    EnergySums,
    PricedType,
    energy_sums,
    with_silent,
)
from slicewise.slurm_plugin.state.cluster_state import ClusterState

MOST_ROWS = 50_000
_DAY_S = 86_400.0


@dataclass(frozen=True)
class _Jobs:
    """Slurm's jobs: their tenants, and which have GPUs on a node."""

    seen: tuple[JobView, ...] = ()
    tenants: Mapping[int, str] = field(default_factory=dict, hash=False)
    by_node: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)


class EnergyBooks:
    """Books what meters tell; only the daemon that leads does.

    Raises UnreachableError (SW-DAEMON-STANDBY) and what the ledger raises: then nothing was booked,
    and the meter tells it again.
    """

    def __init__(
        self, ledger: Ledger, cluster_state: ClusterState, leader: Leader, zone: str
    ) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._leader = leader
        self._zone = zone
        self._fold_due_s = 0.0
        self._warned_nodes: set[str] = set()
        self._sorted = _Jobs()

    async def note(self, request: EnergyPostRequest, _: Caller) -> DoneAnswer:
        """Keep what a node's meter has seen.

        Raises InvalidInputError (SW-NODE-UNKNOWN) for a node that Slurm does not have.
        """
        self._leader.require()
        if request.node not in {node.name for node in self._cluster_state.nodes}:
            raise InvalidInputError(
                Code.NODE_UNKNOWN,
                f"Slurm shows no node {request.node!r}.",
                "Say its name in slurm.conf: slicewise node meter --node NAME",
            )
        jobs = self._jobs()
        silent = with_silent(request.hours, jobs.by_node.get(request.node, ()))
        noted = request.model_copy(update={"hours": silent})
        not_kept = await asyncio.to_thread(self._ledger.energy.note, noted)
        self._cluster_state.node_power.hear(request, jobs.tenants)
        if time.monotonic() >= self._fold_due_s:
            self._fold_due_s = time.monotonic() + _DAY_S
            self._warned_nodes.clear()
            await asyncio.to_thread(self._fold)
        if not_kept and request.node not in self._warned_nodes:
            self._warned_nodes.add(request.node)
            warn("energy_not_kept", node=request.node, hours=not_kept)
        return DoneAnswer()

    def _fold(self) -> None:
        self._ledger.energy.fold(self._ledger.tariffs.zone(self._zone))

    def _jobs(self) -> _Jobs:
        """Meters of many nodes tell between two looks at Slurm's jobs: they are sorted once."""
        seen = self._cluster_state.jobs
        if self._sorted.seen is not seen:
            by_node = defaultdict[str, list[int]](list)
            for job in seen:
                if job.state in ALLOTTED and any(name.startswith("gres/gpu") for name in job.tres):
                    for node in job.nodes:
                        by_node[node].append(job.job_id)
            self._sorted = _Jobs(seen, {job.job_id: job.account for job in seen}, by_node)
        return self._sorted


def energy_use(
    request: EnergyRequest,
    principal: Principal,
    ledger: Ledger,
    settings: Settings,
    watts: Mapping[str, float],
) -> EnergyAnswer:
    """What a user may see: runs of the user's tenants; operators what is nobody's, too.

    Raises InvalidInputError (SW-VALUE) where it is too much, or the file of factors can't be read.
    """
    tenants = principal.tenants if request.tenant is None else frozenset({request.tenant})
    zone = ledger.tariffs.zone(settings.ledger.time_zone)
    # Grams are of the day only where a file has them by time.
    by_day = {"day"} if settings.energy.carbon_file else set[str]()
    fields = {*LINE_FIELDS[request.by], *by_day}
    wanted = WantedEnergy(
        *_midnights(request.since_s, request.until_s, zone), zone, tenants, MOST_ROWS, fields
    )
    rows = ledger.energy.rows(wanted)
    unmeasured = ledger.energy.unmeasured(wanted, int(wall_s()))
    if MOST_ROWS in (len(rows), len(unmeasured)):
        raise InvalidInputError(
            Code.VALUE,
            f"There are more than {MOST_ROWS:,} sums{' of a day' if by_day else ''}.",
            "Ask for fewer days: slicewise energy --from TIME --until TIME",
        )
    days = {row.day for row in rows} | {row.day for row in unmeasured}
    factors = grams_per_kwh(settings.energy, days, zone)
    sums = energy_sums(request.by, rows, unmeasured, priced_types(settings), factors)
    tokens: Mapping[str, int] = {}
    if request.by == "service":
        tokens = _by_service(ledger.energy.tokens(wanted))
    sees_all = principal.tenants is None and request.tenant is None
    names, has_carbon = LINE_FIELDS[request.by], bool(factors)
    return EnergyAnswer(
        lines=tuple(
            _line(dict(zip(names, key, strict=True)), summed, tokens, has_carbon=has_carbon)
            for key, summed in sums.items()
        ),
        power_mw=round(sum(watts.values()) * 1000) if watts and sees_all else None,
    )


def energy_by_tenant(
    ledger: Ledger, settings: Settings, since_s: int, until_s: int, zone: str
) -> Mapping[str, EnergySums] | None:
    """The joules of days of the zone that begin in that time; None where they are too many to read.
    What is nobody's is that of "".
    """
    wanted = WantedEnergy(
        *_midnights(since_s, until_s, zone), zone, None, MOST_ROWS, LINE_FIELDS["tenant"]
    )
    rows, unmeasured = ledger.energy.rows(wanted), ledger.energy.unmeasured(wanted, until_s)
    if MOST_ROWS in (len(rows), len(unmeasured)):
        return None
    sums = energy_sums("tenant", rows, unmeasured, priced_types(settings), {})
    return {tenant: summed for (tenant,), summed in sums.items()}


def _midnights(since_s: int, until_s: int, zone: str) -> tuple[int, int]:
    """Those from which and up to which days are that begin in that time, as of requests' money."""
    first_s, end_s = (
        at_s
        if period_start_s(Period.DAY, at_s, zone) == at_s
        else next_start_s(Period.DAY, at_s, zone) or at_s
        for at_s in (since_s, until_s)
    )
    return first_s, end_s


def _by_service(tokens: Mapping[tuple[str, str], int]) -> Mapping[str, int]:
    sums = defaultdict[str, int](int)
    for (service, _), count in tokens.items():
        sums[service] += count
    return sums


def _line(
    about: Mapping[str, str], sums: EnergySums, tokens: Mapping[str, int], *, has_carbon: bool
) -> EnergyLine:
    return EnergyLine(
        **about,
        energy_mj=sums.runs_mj,
        counter_mj=sums.counter_mj,
        power_mj=sums.power_mj,
        model_mj=sums.model_mj,
        shared_mj=sums.shared_mj,
        idle_mj=sums.idle_mj,
        unknown_mj=sums.unknown_mj,
        tokens=tokens.get(about.get("service", "")),
        carbon_g=round(sums.carbon_g, 3) if has_carbon else None,
    )


def priced_types(settings: Settings) -> Mapping[str, PricedType]:
    """The part of a board that each type is."""
    return {
        gres_type: PricedType(
            model, Millislices(round(settings.costs[gres_type] / settings.gpus[model].weight))
        )
        for gres_type, model in settings.models.items()
    }
