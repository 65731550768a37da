"""Reads a cluster file: a site in TOML, for people without one at hand.

The sections of slicewise.toml and of a file of quotas stand in it as they do there, beside the
hardware and Slurm's accounts and scheduling.
"""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.slurm.unread import quoted
from slicewise.cluster.language.slurm.values import duration_s, hosts
from slicewise.cluster.language.toml_text import read_toml
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import (
    REPAIR_HOURS,
    BoardsOfNode,
    NodeFailures,
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.snapshot.boards import boards_of, with_pads
from slicewise.simulation.rules.snapshot.site import SiteDescription, untouched_ledger
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.quota_file import FileFaults, table_updates
from slicewise.slurm_plugin.rules.quota.tenants import changed_together
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, Policy

MOST_BYTES = 1 << 22
_MOST_NODES = 100_000
_DAY_S = 86_400
_SETTINGS = ("gpus", "shared", "qos", "admission", "priority", "lending", "ledger", "repartition")
_OWN = ("name", "partitions", "nodes", "accounts", "scheduling", "failures", "tenants")
_HARDWARE = frozenset({"name", "partitions", "nodes"})
_OTHER_KINDS = {
    "tenants": ("a file of quotas", "Name it by --change, and the site's own file before it."),
    "service": ("a service's file", "Name it by --service, and the site's own file before it."),
    "daemon": ("a slicewise.toml", "slicewise snapshot FILE.zip takes a site that has one."),
}
"""Files that are taken for a cluster file, by a table that they have: what they are, what to do."""


def _time_s(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return duration_s(value)
    except SlicewiseError:
        raise ValueError('write seconds, or a time such as "7-00:00:00"') from None


_TimeS = Annotated[int, BeforeValidator(_time_s), Field(ge=1)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]
_Days = Annotated[float, Field(ge=0.01, le=1e6)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Nodes(_Section):
    names: str = Field(max_length=4096)
    boards: Annotated[int, Field(ge=1, le=1024)] | None = None
    gpus: Mapping[_Name, Annotated[int, Field(ge=1, le=1024)]] = {}
    partitions: tuple[_Name, ...] = ()
    cpus: _Count = 0
    memory_gib: _Count = 0
    weight: Annotated[int, Field(ge=1, le=1 << 31)] = 1


class _Account(_Section):
    parent: _Name = ROOT_ACCOUNT
    share: Annotated[int, Field(ge=1, le=1 << 31)] = 1


class _Partition(_Section):
    max_time: _TimeS | None = None
    default_time: _TimeS | None = None


class _Weights(_Section):
    age: _Count = 0
    fair_share: _Count = 0
    job_size: _Count = 0
    qos: _Count = 0
    max_age: _TimeS = PriorityWeights.max_age_s
    half_life: Annotated[int, BeforeValidator(_time_s), Field(ge=0)] = PriorityWeights.half_life_s


class _Scheduling(_Section):
    weights: _Weights = _Weights()
    backfills: bool = True
    interval_s: Annotated[float, Field(ge=0, le=3600)] = Scheduling.interval_s
    batch_delay_s: Annotated[float, Field(ge=0, le=3600)] = Scheduling.batch_delay_s
    depth: Annotated[int, Field(ge=1, le=1_000_000)] = Scheduling.depth
    backfill_s: Annotated[float, Field(gt=0, le=3600)] = Scheduling.backfill_s
    backfill_jobs: Annotated[int, Field(ge=1, le=1_000_000)] = Scheduling.backfill_jobs
    backfill_window_s: Annotated[float, Field(ge=60, le=1e8)] = Scheduling.backfill_window_s
    preempts_youngest_first: bool = Scheduling.preempts_youngest_first
    start_s: Annotated[float, Field(ge=0, le=3600)] = Scheduling.start_s
    complete_s: Annotated[float, Field(ge=0, le=3600)] = Scheduling.complete_s
    kill_wait_s: Annotated[float, Field(ge=0, le=65_533)] = Scheduling.kill_wait_s


class _Failures(_Section):
    mean_days: _Days
    repair_hours: Annotated[float, Field(gt=0, le=8760)] = REPAIR_HOURS


class _File(_Section):
    name: _Name
    partitions: Mapping[_Name, _Partition] = Field(min_length=1)
    nodes: tuple[_Nodes, ...] = Field(min_length=1)
    accounts: Mapping[_Name, _Account] = {}
    scheduling: _Scheduling = _Scheduling()
    failures: _Failures | None = None


def read_cluster_file(path: Path) -> SiteDescription:
    """Read the file.

    Raises InvalidInputError (SW-INPUT-FILE) that names file and key, or the table of tenants.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _refused(path, f"it can't be read: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise _refused(path, f"it has more than {MOST_BYTES} bytes")
    return described_by(path, raw)


def described_by(path: Path, raw: bytes) -> SiteDescription:
    """The site that the file's text describes; raises what ``read_cluster_file`` does."""
    content, exact = _tables(path, raw)
    _check_kind(path, content)
    unknown = [key for key in content if key not in (*_OWN, *_SETTINGS)]
    if unknown:
        keys = ", ".join((*_OWN, *_SETTINGS))
        raise _refused(path, f"there is no key {quoted(unknown[0])}; keys: {keys}")
    try:
        own = _File.model_validate({key: content[key] for key in content if key in _OWN[:-1]})
        settings = Settings.model_validate(
            {
                "cluster": {"name": own.name, "partitions": tuple(own.partitions)},
                **{key: content[key] for key in content if key in _SETTINGS},
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        words = first["msg"].removeprefix("Value error, ")
        raise _refused(path, f"{quoted(where) or 'the file'}: {words}") from None
    except InvalidInputError as error:
        raise _refused(path, f"gpus: {error.refusal.message.rstrip('.')}") from None
    policy = _policy(path, raw, exact.get("tenants", {}), settings)
    return SiteDescription(
        taken_s=0,
        cluster=_cluster(path, own, policy, settings),
        settings=settings,
        ledger=untouched_ledger(policy, moment(0.0, settings.ledger.time_zone)),
    )


def _tables(path: Path, raw: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The file's tables, and the same with numbers that have a point as text: amounts are exact."""
    try:
        text = raw.decode()
        return read_toml(text), read_toml(text, parse_float=str)
    except RecursionError:
        raise _refused(path, "it is not TOML: tables in tables without end") from None
    except ValueError as error:  # TOMLDecodeError, no UTF-8, a number of thousands of digits
        raise _refused(path, f"it is not TOML: {quoted(str(error))}") from None


def _check_kind(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a file of another kind by its name: what it lacks of a cluster file helps nobody."""
    if not content.keys().isdisjoint(_HARDWARE):
        return
    for table, (kind, hint) in _OTHER_KINDS.items():
        if table in content:
            raise InvalidInputError(
                Code.INPUT_FILE, f"{path}: it is {kind}, and describes no cluster.", hint
            )


def _policy(path: Path, raw: bytes, tables: object, settings: Settings) -> Policy:
    if not isinstance(tables, dict):
        raise _refused(path, "tenants: write tables [tenants.NAME]")
    faults = FileFaults(str(path), raw.decode())
    updates = table_updates(tables, {}, settings, faults)
    faults.check()
    policy, refused = changed_together({}, updates)
    for name, error in refused.items():
        faults.add(name, error)
    faults.check()
    return policy


def _cluster(path: Path, own: _File, policy: Policy, settings: Settings) -> SimulatedCluster:
    accounts = {name: tenant.parent or ROOT_ACCOUNT for name, tenant in policy.items()}
    accounts |= {name: account.parent for name, account in own.accounts.items()}
    places = {*accounts, ROOT_ACCOUNT}
    for name, parent in accounts.items():
        if parent not in places:
            raise _refused(path, f"accounts.{name}: no account {parent} stands above it")
    try:
        TopologicalSorter({name: (parent,) for name, parent in accounts.items()}).prepare()
    except CycleError as error:
        name = error.args[1][0]
        raise _refused(path, f"accounts.{name}: it stands above itself") from None
    scheduling = own.scheduling
    weights = scheduling.weights
    return SimulatedCluster(
        name=own.name,
        nodes=tuple(_nodes(path, own, settings)),
        scheduling=Scheduling(
            weights=PriorityWeights(
                age=weights.age,
                fair_share=weights.fair_share,
                job_size=weights.job_size,
                qos=weights.qos,
                max_age_s=weights.max_age,
                half_life_s=weights.half_life,
            ),
            **scheduling.model_dump(exclude={"weights"}),
        ),
        accounts=accounts,
        shares={
            name: account.share for name, account in own.accounts.items() if account.share != 1
        },
        max_time_s={
            name: partition.max_time
            for name, partition in own.partitions.items()
            if partition.max_time is not None
        },
        default_time_s={
            name: partition.default_time
            for name, partition in own.partitions.items()
            if partition.default_time is not None
        },
        failures=_failures(own.failures),
    )


def _failures(of: _Failures | None) -> NodeFailures | None:
    return None if of is None else NodeFailures(of.mean_days * _DAY_S, of.repair_hours * 3600)


def _nodes(path: Path, own: _File, settings: Settings) -> Iterator[SimulatedNode]:
    """The nodes, in order; without partitions of their own they are in all."""
    seen: set[str] = set()
    for group in own.nodes:
        partitions = frozenset(group.partitions or own.partitions)
        if unknown := sorted(partitions - own.partitions.keys()):
            raise _refused(path, f"nodes.partitions: there is no [partitions.{unknown[0]}]")
        try:
            names = hosts(group.names)
        except SlicewiseError:
            raise _refused(
                path, f"nodes.names: {quoted(group.names)} is no list of hosts"
            ) from None
        before = len(seen)
        seen.update(names)
        if not names or len(seen) != before + len(names) or len(seen) > _MOST_NODES:
            raise _refused(
                path, f"nodes.names: {quoted(group.names)} names none, one twice, or too many"
            )
        boards = _boards(path, group, settings)
        gpus = dict(group.gpus) if boards is None else with_pads(group.gpus, boards)
        for name in names:
            yield SimulatedNode(
                name=name,
                partitions=partitions,
                gpus=gpus,
                cpus=group.cpus,
                memory_mib=group.memory_gib << 10,
                weight=group.weight,
                boards=boards,
            )


def _boards(path: Path, group: _Nodes, settings: Settings) -> BoardsOfNode | None:
    """The nodes' boards, if they may be cut again."""
    node = boards_of(group.gpus, settings, group.boards)
    if node is None and group.boards is not None and settings.repartition.allowed:
        why = f"the instances of {quoted(group.names)} do not fit on {group.boards} of one model"
        raise _refused(path, f"nodes.boards: {why}")
    return node


def _refused(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.INPUT_FILE, f"{path}: {why}.", "docs/reference/cluster-file.md has an example."
    )
