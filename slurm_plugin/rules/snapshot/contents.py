"""What an archive of ``slicewise snapshot`` holds: a site's state at one moment, as one value.

Its JSON has the keys of the values that decisions are made on. A key may be added where the value
has a default; anything else is a new ``FORMAT``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from slicewise.cluster.language.jobs import JobState, JobTag, JobView, NodeView, PartitionView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.slurm.job_history import is_everywhere
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView

FORMAT = 1
STATE, HISTORY = "snapshot.json", "jobs.txt"
"""Members of the archive. The history is there only if it was asked for; it is sacct's text."""

SCHEDULING_KEYS = (
    *("AccountingStorageEnforce", "AccountingStorageTRES", "AuthInfo", "CompleteWait"),
    "EnforcePartLimits",
    *("GresTypes", "KillWait", "MaxArraySize", "MaxJobCount", "MinJobAge", "OverTimeLimit"),
    *("PreemptExemptTime", "PreemptMode", "PreemptParameters", "PreemptType"),
    *("PriorityCalcPeriod", "PriorityDecayHalfLife", "PriorityFavorSmall", "PriorityFlags"),
    *("PriorityMaxAge", "PriorityType", "PriorityUsageResetPeriod", "PriorityWeightAge"),
    *("PriorityWeightAssoc", "PriorityWeightFairShare", "PriorityWeightJobSize"),
    *("PriorityWeightPartition", "PriorityWeightQOS", "PriorityWeightTRES"),
    *("SchedulerParameters", "SchedulerType", "SelectType", "SelectTypeParameters"),
)
"""Keys of slurm.conf that say how Slurm schedules; none has a path, an address or a secret. Of
AuthInfo only cred_expire is kept."""

_SETTINGS: Mapping[str, Any] = {
    "cluster": True,
    "gpus": True,
    "shared": True,
    "qos": True,
    "admission": {"untyped", "without_gpu", "cpus_per_slice", "memory_gib_per_slice"},
    "placement": True,
    "priority": True,
    "lending": True,
    "ledger": {"node_failure", "idle_time", "by_hand", "time_zone"},
    "daemon": {"mode", "extend_leases"},
    "repartition": {"allowed", "nodes_at_once", "move_s"},
}
"""Of slicewise.toml, what decides; none has a path, an address or a secret."""

_SERVICE_KEYS = frozenset(
    {
        *(
            "abort_roll_after",
            "concurrency",
            "cpus",
            "deadline_s",
            "engine",
            "gpus",
            "keep_alive_s",
        ),
        *("lease_s", "max_queue_s", "max_replicas", "memory_mib", "min_replicas", "model_mib"),
        *(
            "need_gib",
            "nodes",
            "p95_ms",
            "pool",
            "priority_class",
            "profile",
            "readiness",
            "retry_once",
        ),
        *("session_affinity", "start_timeout_s", "tensor_parallel", "tpot_ms", "ttft_ms"),
    }
)
"""Of a service file, what decides how many replicas there are and what they ask for."""

_UNMARKED = "0"
_TRES_LISTS = ("AccountingStorageTRES", "PriorityWeightTRES")
"""Of slurm.conf: ``cpu,license/name`` and ``cpu=1000,license/name=5``."""
_LICENCE = "license/"
_EXPIRES = "cred_expire="
Amount = TypeVar("Amount", int, float, str)


@dataclass(frozen=True)
class SnapshotService:
    """A generation of a service: what of its specification decides, as its script says it."""

    array_job_id: int
    tenant: str
    name: str
    values: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class SiteSnapshot:
    """A site's state.

    Attributes:
        taken_s: Unix seconds.
        history_since_s: from when on accounting was asked for jobs that waited or ran, in Unix
            seconds; None without a history.
        config: slurm.conf's values of ``SCHEDULING_KEYS``, as slurmctld has them.
        nodes: without their addresses.
        jobs: those that have not ended, without what users wrote into them.
        settings: what of slicewise.toml decides; see ``site_settings``.
        ledger: without what it remembers of settings in slurmdbd.
        pseudonyms: which names were replaced: ``none``, ``names`` or ``all``.
    """

    format: int
    taken_s: int
    slicewise_version: str
    slurm_version: tuple[int, ...]
    config: Mapping[str, str] = field(hash=False)
    nodes: tuple[NodeView, ...]
    partitions: tuple[PartitionView, ...]
    associations: tuple[Association, ...]
    qos: tuple[Qos, ...]
    jobs: tuple[JobView, ...]
    settings: Mapping[str, Any] = field(hash=False)
    ledger: LedgerView
    services: tuple[SnapshotService, ...] = ()
    pseudonyms: Literal["none", "names", "all"] = "none"
    history_since_s: int | None = None

    @property
    def site_settings(self) -> Settings:
        """The settings that decide, with the defaults of all others.

        Raises ValidationError for settings that no slicewise.toml can have.
        """
        return Settings.model_validate(self.settings)


def settings_values(settings: Settings) -> Mapping[str, Any]:
    """What of the settings decides."""
    return settings.model_dump(mode="json", include=_SETTINGS)


def scheduling_values(config: Mapping[str, str]) -> Mapping[str, str]:
    """What of slurm.conf says how Slurm schedules."""
    shown = {key: config[key] for key in SCHEDULING_KEYS if key in config}
    lists = {key: _without_licences(shown[key]) for key in _TRES_LISTS if key in shown}
    auth = {"AuthInfo": _credentials(shown["AuthInfo"])} if "AuthInfo" in shown else {}
    return {**shown, **lists, **auth}


def _credentials(text: str) -> str:
    """How long credentials are valid, for which a requeued job waits; not where munge listens."""
    return ",".join(word for word in text.split(",") if word.lower().startswith(_EXPIRES))


def _without_licences(text: str) -> str:
    return ",".join(word for word in text.split(",") if not word.lower().startswith(_LICENCE))


def _everywhere(tres: Mapping[str, Amount]) -> Mapping[str, Amount]:
    return {name: amount for name, amount in tres.items() if is_everywhere(name)}


def partition_values(partitions: Iterable[PartitionView]) -> tuple[PartitionView, ...]:
    """The partitions, without weights of TRES that only this site has."""
    return tuple(
        replace(partition, billing_weights=_everywhere(partition.billing_weights))
        for partition in partitions
    )


def association_values(associations: Iterable[Association]) -> tuple[Association, ...]:
    """The accounts and users, without limits on TRES that only this site has."""
    return tuple(
        replace(
            association,
            grp_tres=_everywhere(association.grp_tres),
            grp_tres_run_mins=_everywhere(association.grp_tres_run_mins),
            grp_tres_mins=_everywhere(association.grp_tres_mins),
        )
        for association in associations
    )


def qos_values(rows: Iterable[Qos]) -> tuple[Qos, ...]:
    """The QOS, without limits on TRES that only this site has."""
    return tuple(
        replace(
            qos,
            grp_tres=_everywhere(qos.grp_tres),
            max_tres_per_account=_everywhere(qos.max_tres_per_account),
            grp_tres_run_mins=_everywhere(qos.grp_tres_run_mins),
        )
        for qos in rows
    )


def service_values(directives: Mapping[str, str]) -> Mapping[str, str]:
    """What of a service's script decides."""
    return {key: value for key, value in directives.items() if key in _SERVICE_KEYS}


def ledger_values(view: LedgerView) -> LedgerView:
    """The ledger's view, without what operators wrote and what it remembers of slurmdbd."""
    return replace(
        view, windows=tuple(replace(window, reason="") for window in view.windows), known={}
    )


def without_addresses(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """The nodes, without where they are reached."""
    return tuple(replace(node, address="") for node in nodes)


def without_words(jobs: Iterable[JobView]) -> tuple[JobView, ...]:
    """Jobs that have not ended, without their comments and without TRES that only this site has.

    Slicewise's tags are kept without their tokens.
    """
    return tuple(_without_words(job) for job in jobs if job.state is not JobState.ENDED)


def _without_words(job: JobView) -> JobView:
    tag = JobTag.find(job.admin_comment)
    kept = "" if tag is None else replace(tag, token=_UNMARKED).text()
    return replace(job, comment="", admin_comment=kept, tres=_everywhere(job.tres))


_ADAPTER: TypeAdapter[SiteSnapshot] = TypeAdapter(SiteSnapshot)


def to_json(snapshot: SiteSnapshot) -> str:
    """Write as JSON: the same value is the same text."""
    return json.dumps(_plain(snapshot), sort_keys=True, ensure_ascii=True, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """The value of mappings, lists, text and numbers; sets are sorted."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def from_values(values: object) -> SiteSnapshot:
    """Read what ``to_json`` wrote, parsed; ValidationError for anything else."""
    return _ADAPTER.validate_python(values)
