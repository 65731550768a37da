"""What a simulation begins with: hardware and scheduling, settings, the ledger, Slurm's limits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobView, NodeView, PartitionView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.slurm.values import duration_s
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import (
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.snapshot.boards import boards_of
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.quota.calendar import Moment
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, Policy
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import preempts_youngest_first
from slicewise.slurm_plugin.rules.snapshot.contents import SiteSnapshot, SnapshotService

_MULTIFACTOR, _BACKFILL = "priority/multifactor", "sched/backfill"
_BY_QOS = "preempt/qos"
_NEVER = "-1"
_MINUTE_S, _MICROSECOND_S = 60.0, 1e-6
_MIN_INTERVAL_US, _BATCH_DELAY_S = 2.0, 3.0
"""Slurm's sched_min_interval and batch_sched_delay where SchedulerParameters has none."""
_MOST_S = 10_000_000


@dataclass(frozen=True)
class SiteDescription:
    """A site at one moment: by a snapshot, or by a cluster file, which has no jobs and no limits.

    Attributes:
        taken_s: Unix seconds of that moment; 0 for a cluster file.
        preempt_mode: slurm.conf's PreemptMode, in small letters, for QOS that say "cluster".
        preempts_by_qos: whether Slurm preempts by the QOS' lists: PreemptType is preempt/qos.
        enforces_limits: whether Slurm refuses what a partition's limits forbid (EnforcePartLimits).
    """

    taken_s: int
    cluster: SimulatedCluster
    settings: Settings = field(hash=False)
    ledger: LedgerView
    partitions: tuple[PartitionView, ...] = ()
    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()
    jobs: tuple[JobView, ...] = ()
    services: tuple[SnapshotService, ...] = ()
    preempts_by_qos: bool = True
    preempt_mode: str = "requeue"
    enforces_limits: bool = False


def untouched_ledger(tenants: Policy, when: Moment) -> LedgerView:
    """The ledger of a site on which nothing has happened."""
    return LedgerView(
        when=when,
        change_id=0,
        compiled_id=0,
        tenants=tenants,
        windows=(),
        loans=(),
        recalls=(),
        balances={},
        rollovers={},
        reservations=(),
        known={},
    )


def described(snapshot: SiteSnapshot) -> SiteDescription:
    """The site that a snapshot is of; raises what ``SiteSnapshot.site_settings`` does."""
    settings = snapshot.site_settings
    return SiteDescription(
        taken_s=snapshot.taken_s,
        cluster=_cluster(settings, snapshot),
        settings=settings,
        ledger=snapshot.ledger,
        partitions=snapshot.partitions,
        associations=snapshot.associations,
        qos=snapshot.qos,
        jobs=snapshot.jobs,
        services=snapshot.services,
        preempts_by_qos=snapshot.config.get("PreemptType") == _BY_QOS,
        preempt_mode=snapshot.config.get("PreemptMode", "OFF").lower(),
        enforces_limits=snapshot.config.get("EnforcePartLimits", "NO").upper() != "NO",
    )


def _cluster(settings: Settings, snapshot: SiteSnapshot) -> SimulatedCluster:
    accounts = [association for association in snapshot.associations if not association.user]
    return SimulatedCluster(
        name=settings.cluster.name,
        nodes=tuple(_node(node, settings) for node in snapshot.nodes if not node.is_shapes),
        scheduling=scheduling_of(snapshot.config),
        accounts={
            account.account: account.parent or ROOT_ACCOUNT
            for account in accounts
            if account.account != ROOT_ACCOUNT
        },
        shares={
            account.account: account.share for account in accounts if account.share not in {1, None}
        },
        max_time_s=_known(
            (partition.name, partition.max_time_s) for partition in snapshot.partitions
        ),
        default_time_s=_known(
            (partition.name, partition.default_time_s) for partition in snapshot.partitions
        ),
    )


def _known(times_s: Iterable[tuple[str, int | None]]) -> Mapping[str, int]:
    return {name: time_s for name, time_s in times_s if time_s is not None}


def _node(node: NodeView, settings: Settings) -> SimulatedNode:
    """The node; GPUs without a type are of the type "". Without pads it is never cut again."""
    has_pads = any(map(is_pad, node.gpus))
    untyped = {"": node.untyped_gpus} if node.untyped_gpus else {}
    return SimulatedNode(
        name=node.name,
        partitions=node.partitions,
        gpus={**node.gpus, **untyped},
        cpus=node.cpus,
        memory_mib=node.memory_mib,
        weight=node.weight,
        boards=boards_of(node.gpus, settings) if has_pads else None,
    )


def scheduling_of(config: Mapping[str, str]) -> Scheduling:
    """How Slurm schedules by slurm.conf's keys; defaults for what is not there or out of bounds.

    With bf_interval=-1 there is no backfill.
    """
    options = _options(config.get("SchedulerParameters", ""))
    credentials = _options(config.get("AuthInfo", ""))
    weights = PriorityWeights()
    if config.get("PriorityType", _MULTIFACTOR) == _MULTIFACTOR:
        weights = PriorityWeights(
            age=_whole(config.get("PriorityWeightAge", "")) or 0,
            fair_share=_whole(config.get("PriorityWeightFairShare", "")) or 0,
            job_size=_whole(config.get("PriorityWeightJobSize", "")) or 0,
            qos=_whole(config.get("PriorityWeightQOS", "")) or 0,
            max_age_s=_seconds(config.get("PriorityMaxAge", ""), PriorityWeights.max_age_s),
            half_life_s=_seconds(
                config.get("PriorityDecayHalfLife", ""), PriorityWeights.half_life_s
            ),
        )

    def option(
        name: str,
        otherwise: float,
        unit: float = 1.0,
        *,
        least: int = 0,
        of: Mapping[str, str] = options,
    ) -> float:
        value = _whole(of.get(name, ""))
        return otherwise if value is None or value < least else min(value, _MOST_S) * unit

    is_backfill = config.get("SchedulerType", _BACKFILL) == _BACKFILL
    return Scheduling(
        weights=weights,
        interval_s=option("sched_min_interval", _MIN_INTERVAL_US * _MICROSECOND_S, _MICROSECOND_S),
        batch_delay_s=option("batch_sched_delay", _BATCH_DELAY_S),
        depth=int(option("default_queue_depth", Scheduling.depth)),
        backfills=is_backfill and options.get("bf_interval") != _NEVER,
        backfill_s=option("bf_interval", Scheduling.backfill_s, least=1),
        backfill_jobs=int(option("bf_max_job_test", Scheduling.backfill_jobs, least=1)),
        backfill_window_s=option("bf_window", Scheduling.backfill_window_s, _MINUTE_S, least=1),
        backfill_resolution_s=option("bf_resolution", Scheduling.backfill_resolution_s, least=1),
        reserve_age_s=option("bf_min_age_reserve", Scheduling.reserve_age_s),
        reserve_priority=int(option("bf_min_prio_reserve", Scheduling.reserve_priority)),
        full_run_s=option("sched_interval", Scheduling.full_run_s, least=1),
        requeue_wait_s=option("cred_expire", Scheduling.requeue_wait_s, least=5, of=credentials),
        preempts_youngest_first=preempts_youngest_first(config),
        kill_wait_s=_kill_wait_s(config.get("KillWait", "")),
    )


def _kill_wait_s(text: str) -> float:
    """Read ``30 sec``."""
    value = _whole(text.removesuffix(" sec"))
    return Scheduling.kill_wait_s if value is None else min(value, _MOST_S)


def _options(text: str) -> Mapping[str, str]:
    pairs = (word.partition("=") for word in text.split(","))
    return {name.strip(): value for name, _, value in pairs}


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= len(str(1 << 62)) else None


def _seconds(text: str, otherwise: int) -> int:
    try:
        seconds = duration_s(text)
    except OutsideError:
        seconds = None
    return otherwise if seconds is None else seconds
