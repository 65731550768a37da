"""A Slurm and a ledger that show what a test sets, and remember what was asked of them."""

import time
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builders.jobs import a_job
from builders.tenants import policy_of, tenant

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.language.jobs import (
    JobState,
    JobView,
    NodeView,
    PartitionView,
    PlannedStart,
    ReservationView,
    RunOfJob,
    RunRecord,
    StepView,
)
from slicewise.cluster.language.slurm.interface import (
    Association,
    Changed,
    JobChange,
    JobRequest,
    PriorityRow,
    Qos,
    Requeued,
    Submission,
    Target,
    Tasks,
)
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant, KeyView
from slicewise.cluster.rpc.limit_messages import (
    LimitChangeRequest,
    LimitRank,
    RequestLimits,
    SubjectLimits,
)
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer
from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.cluster.settings.file import DaemonSettings, Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.ledger.keys import NewKey
from slicewise.slurm_plugin.ledger.repartitions import NodeSurvey
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS
from slicewise.slurm_plugin.rules.quota.calendar import Window
from slicewise.slurm_plugin.rules.quota.lending import within_limits
from slicewise.slurm_plugin.rules.quota.types import (
    KnownLimit,
    LimitKey,
    Loan,
    LoanTerm,
    Policy,
    Recall,
)
from slicewise.slurm_plugin.rules.services.key_rights import Opening, wanted_from_s
from slicewise.slurm_plugin.rules.services.limit_layers import changed_layers, together
from slicewise.slurm_plugin.rules.services.orders import Ordered
from slicewise.slurm_plugin.state.cluster_state import ClusterState
from stand_ins.memory_ledger import MemoryStore

ETC = Path(__file__).resolve().parents[2] / "etc" / "slicewise.toml"
SCRIPT = "#!/bin/bash\n#SLICEWISE name=bert\n#SLICEWISE tenant=vision\n#SLICEWISE max_replicas=3\n"
DOWN = UnreachableError("SW-SLURM-DOWN", "down")


def settings(mode: str = "enforce") -> Settings:
    daemon = DaemonSettings.model_validate({"mode": mode})
    return load_settings(ETC).model_copy(update={"daemon": daemon})


def job(index: int, state: JobState = JobState.PENDING, **changes: Any) -> JobView:
    """A task of the array of service bert of vision; one that waits is held."""
    is_held, runs = state is JobState.PENDING, state is JobState.RUNNING
    fields: dict[str, Any] = {
        "array_job_id": 814,
        "task_index": index,
        "name": "bert",
        "qos": "slicewise_vision",
        "state": state,
        "reason": "JobHeldAdmin" if is_held else "None",
        "held": is_held,
        "priority": 0,
        "admin_comment": "slicewise:1 token=ab12 tenant=vision service=bert",
        "start_s": 1000 if runs else None,
        "time_limit_s": 600,
    }
    return a_job(**({"job_id": 900 + index} | fields | changes))


class ScriptedSlurm:
    """Shows what a test sets, and remembers what was asked of it.

    Attributes:
        shown: all jobs.
        meanwhile: the jobs as they are after the last look; None if they are the same.
        failure: the error of looks and actions; None if they succeed.
        ahead_s: seconds by which slurmctld's clock is ahead of this host's.
        done: calls by name, each with its target.
    """

    def __init__(self, *jobs: JobView) -> None:
        self.shown: tuple[JobView, ...] = jobs
        self.ahead_s = 0.0
        self.meanwhile: tuple[JobView, ...] | None = None
        self.failure: SlicewiseError | None = None
        self.done: list[tuple[str, Any]] = []
        self.known_nodes: tuple[NodeView, ...] = ()
        self.records: tuple[RunRecord, ...] = ()
        self.script = SCRIPT
        self.scripts: Mapping[int, str] = {}
        self.scriptless: set[int] = set()
        self.unreadable: SlicewiseError | None = None
        self.requested = JobRequest()
        self.excluded: Mapping[int, frozenset[str]] = {}
        self.throttles: frozenset[int] = frozenset()
        self.coordinated: Mapping[str, frozenset[str]] = {}
        self.throttles_asked = 0
        self.planned: tuple[PlannedStart, ...] = ()
        self.known_reservations: tuple[ReservationView, ...] = ()
        self.run_in: Mapping[int, frozenset[str]] = {}
        self.known_cores: Mapping[int, Mapping[str, frozenset[int]]] = {}
        self.known_devices: Mapping[int, Mapping[str, frozenset[int]]] = {}
        self.site_factors: dict[int, int] = {}
        self.refusals: Mapping[RunOfJob, str] = {}

    def _see(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def version(self) -> tuple[int, ...]:
        return (22, 5, 8)

    async def clock_s(self, known_for_s: float = 0.0) -> float:
        return time.time() + self.ahead_s

    async def jobs(self) -> tuple[JobView, ...]:
        self._see()
        return self.shown

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        """The arrays' tasks as they are after the last look, where the test says so."""
        now = self.shown if self.meanwhile is None else self.meanwhile
        return tuple(job for job in now if job.array_job_id in array_job_ids)

    async def nodes(self) -> tuple[NodeView, ...]:
        return self.known_nodes

    async def config(self) -> Mapping[str, str]:
        return {}

    async def partitions(self) -> tuple[PartitionView, ...]:
        return ()

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        return ()

    async def plans(self) -> tuple[PlannedStart, ...]:
        return self.planned

    async def reservations(self) -> tuple[ReservationView, ...]:
        return self.known_reservations

    async def reserved(self) -> Mapping[int, frozenset[str]]:
        return self.run_in

    async def cores(self, jobs: Collection[JobView]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        return {job.job_id: self.known_cores.get(job.job_id, {}) for job in jobs}

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        return {job.job_id: self.known_devices.get(job.job_id, {}) for job in jobs}

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        self.done.append(("runs", since_s))
        self._see()
        return self.records

    async def batch_script(self, job_id: int) -> str:
        self.done.append(("script", job_id))
        if self.unreadable is not None:
            raise self.unreadable
        return self.script

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        self.done.append(("scripts", sorted(job_ids)))
        return {
            job_id: Submission(self.scripts.get(job_id, self.script), "/home/alice")
            for job_id in job_ids
            if job_id not in self.scriptless
        }

    async def associations(self) -> tuple[Association, ...]:
        return ()

    async def coordinators(self) -> Mapping[str, frozenset[str]]:
        return self.coordinated

    async def qos_elsewhere(self) -> frozenset[str]:
        return frozenset()

    async def qos(self) -> tuple[Qos, ...]:
        return (Qos(GATE_QOS, {"billing": 0}, frozenset()),)

    async def requests(self, job_ids: Collection[int]) -> Mapping[int, JobRequest]:
        self.done.append(("requests", sorted(job_ids)))
        return dict.fromkeys(job_ids, self.requested)

    async def throttled(self, array_job_ids: Collection[int]) -> frozenset[int]:
        self.throttles_asked += 1
        return self.throttles & set(array_job_ids)

    async def excluded_nodes(self, array_job_id: int) -> Mapping[int, frozenset[str]]:
        self.done.append(("excluded_nodes", array_job_id))
        return {
            job.job_id: self.excluded.get(job.job_id, frozenset())
            for job in self.shown
            if job.array_job_id == array_job_id
        }

    async def hold(self, target: Target) -> None:
        self._act("hold", target)

    async def release(
        self, target: int | Tasks, limit_min: int | None = None, ended_s: float | None = None
    ) -> None:
        self.ended_s = ended_s
        self._act("release", target)

    async def requeue_hold(self, target: int | Tasks) -> None:
        self._act("requeue_hold", target)

    async def requeue(self, runs: Collection[RunOfJob]) -> Requeued:
        asked = frozenset(runs)
        self._see()
        self.done.append(("requeue", asked))
        return Requeued(asked - self.refusals.keys(), self.refusals)

    async def cancel(self, target: int | Tasks) -> None:
        self._act("cancel", target)

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        for target, change in changes.items():
            self._act(f"update {change}", target)
        return {}

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None:
        self.done.append(("weigh_nodes", dict(weights)))
        self.known_nodes = tuple(
            replace(node, weight=weights.get(node.name, node.weight)) for node in self.known_nodes
        )

    async def priorities(self, job_ids: Collection[int]) -> tuple[PriorityRow, ...]:
        self.done.append(("priorities", sorted(job_ids)))
        known = self.site_factors
        return tuple(PriorityRow(i, known[i], known[i]) for i in job_ids if i in known)

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        self.done.extend(("sacctmgr", tuple(change)) for change in changes)
        return {}

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        return Changed(await self.sacctmgr(changes))

    def _act(self, name: str, target: int | Tasks) -> None:
        self._see()
        shown = target if isinstance(target, int) else sorted(target.indices)
        self.done.append((name, shown))

    @property
    def actions(self) -> list[tuple[str, Any]]:
        asked = {"script", "scripts", "runs", "requests", "priorities", "excluded_nodes"}
        return [one for one in self.done if one[0] not in asked]


def slurm_reasons() -> Sequence[str]:
    """All reasons that any version of Slurm names."""
    text = (Path(__file__).parents[1] / "assets/slurm/reasons.toml").read_text(encoding="utf-8")
    return [name for names in tomllib.loads(text).values() for name in names]


class FreeLock:
    """A lock that no other process holds."""

    def hold(self) -> bool:
        return True

    def holder(self) -> str:
        return ""

    def give_up(self) -> None: ...


class Part:
    """A part of a ledger that is each of its parts, with some answers of its own."""

    def __init__(self, whole: object, **answers: Callable[..., object]) -> None:
        self._whole = whole
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


class NoHistory:
    """Keeps no figures."""

    def add(self, samples: Sequence[object]) -> None: ...

    def sum_up(self, now_s: int) -> None: ...

    def forget(self, now_s: int, kept_s: Mapping[int, int], most: int) -> bool:
        return True

    def forget_names(self) -> None: ...


class NoUsage:
    """No request has used anything."""

    def forget(self, before_s: float, most: int) -> int:
        return 0


class NoEnergy:
    """No board has drawn anything."""

    def rows(self, wanted: object) -> tuple[()]:
        return ()

    def unmeasured(self, wanted: object, until_s: int) -> tuple[()]:
        return ()


@dataclass
class ScriptedLedger(MemoryStore):
    """A ledger with a policy that a test assigns; the next calls raise ``failures``, one each."""

    shown: Policy = field(default_factory=lambda: policy_of(tenant("vision", 2000)))
    newest: int = 7
    compiled_id: int = 0
    lent: tuple[Loan, ...] = ()
    recalled: tuple[Recall, ...] = ()
    calendar: tuple[Window, ...] = ()
    marked: list[int] = field(default_factory=list)
    failures: dict[str, list[SlicewiseError]] = field(default_factory=dict)
    held_lately: tuple[Holding, ...] = ()
    ordered: Mapping[tuple[str, str], Ordered] = field(default_factory=dict)
    said: list[tuple[tuple[str, str], str, str]] = field(default_factory=list)
    known_keys: dict[str, tuple[KeyView, str]] = field(default_factory=dict)
    openings: dict[str, Opening] = field(default_factory=dict)
    named_guests: dict[str, dict[str, float]] = field(default_factory=dict)
    dismissed: set[tuple[str, str]] = field(default_factory=set)
    limited: dict[tuple[str, str, str], dict[LimitRank, RequestLimits]] = field(
        default_factory=dict
    )
    usage: NoUsage = field(default_factory=NoUsage)
    energy: NoEnergy = field(default_factory=NoEnergy)

    @property
    def history(self) -> Any:
        return NoHistory()

    @property
    def loans(self) -> Part:
        return Part(self, forget=lambda _before_s, _after_id, _most: None)

    @property
    def repartitions(self) -> Part:
        return Part(self, forget=lambda _before_s, _most: 0)

    @property
    def generations(self) -> Part:
        return Part(self, forget=lambda _before_s, _living, _most: 0)

    @property
    def observations(self) -> Part:
        return Part(self, add=lambda _found, _oldest_s: None)

    @property
    def windows(self) -> Part:
        return Part(self, add=lambda window, _author, _reason, _zone: window)

    def _fail(self, name: str) -> None:
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def holdings(self, since_s: int) -> tuple[Holding, ...]:
        self._fail("holdings")
        return self.held_lately

    def inventories(self) -> Mapping[str, NodeSurvey]:
        return {}

    def leader(self, host: str) -> "FreeLock":
        return FreeLock()

    def compiling(self) -> "FreeLock":
        return FreeLock()

    def require_current(self) -> None:
        self._fail("require_current")

    def change_id(self) -> int:
        self._fail("change_id")
        return self.newest

    def policy(self) -> Policy:
        self._fail("policy")
        return self.shown

    def outstanding(self) -> tuple[Loan, ...]:
        return self.lent

    def policy_in_force(self, at_s: float, zone: str) -> Policy:
        return self.policy()

    def not_over(self) -> tuple[Window, ...]:
        return self.calendar

    def recalls(self) -> tuple[Recall, ...]:
        return self.recalled

    def terms(self) -> tuple[LoanTerm, ...]:
        return tuple(LoanTerm(one, since_s=9000, grown_s=9500) for one in self.lent)

    def replace(
        self, loans: Sequence[Loan], reason: str, recalls: Sequence[Recall] | None = None
    ) -> tuple[tuple[Loan, ...], tuple[Recall, ...]]:
        self.lent = within_limits(self.shown, loans)
        self.recalled = self.recalled if recalls is None else tuple(recalls)
        return self.lent, self.recalled

    def known(self) -> Mapping[LimitKey, KnownLimit]:
        return {}

    def know(self, known: Mapping[LimitKey, KnownLimit]) -> None: ...

    def mark_compiled(self, change_id: int) -> None:
        self.marked.append(change_id)

    def mark_uninstalled(self) -> None:
        self.compiled_id = UNINSTALLED_ID

    def is_uninstalled(self) -> bool:
        return self.compiled_id == UNINSTALLED_ID

    def forget(self) -> None:
        """Forget Slurm's limits; what ``loans`` and others forget is theirs."""

    def standing(self) -> Mapping[tuple[str, str], Ordered]:
        self._fail("standing")
        return dict(self.ordered)

    def newest_id(self) -> int:
        self._fail("newest_id")
        return len(self.said)

    def write(self, key: tuple[str, str], what: str, ordered: Ordered, author: str) -> None:
        self._fail("write")
        self.said.append((key, what, author))
        others = {one: o for one, o in self.ordered.items() if one != key}
        self.ordered = others if what == "over" else {**others, key: ordered}

    def record(self, generations: Sequence[GenerationRecord]) -> None:
        self._fail("record")
        self.recorded = (*reversed(generations), *self.recorded)

    def named(self, name: str, tenants: Collection[str] | None) -> tuple[GenerationRecord, ...]:
        return tuple(
            one
            for one in self.recorded
            if one.name == name and (tenants is None or one.tenant in tenants)
        )

    def all(self) -> tuple[KeyView, ...]:
        self._fail("all")
        return tuple(key for key, _ in self.known_keys.values())

    def grants(
        self, has_left: Callable[[str, str], bool] = lambda _person, _tenant: False
    ) -> GrantsAnswer:
        self._fail("grants")
        known = self.known_keys.values()
        return GrantsAnswer(
            keys={
                sha256: KeyGrant(
                    opens=f"{key.tenant}/{key.service}" if key.service else key.tenant,
                    key_id=key.key_id,
                    person=key.person,
                    expires_s=key.expires_s,
                )
                for key, sha256 in known
                if key.revoked_s is None and not has_left(key.person, key.tenant)
            },
            wanted_from_s=wanted_from_s({key.tenant: 1.0 for key, _ in known}, self.openings),
        )

    def add(self, new: NewKey, *, in_place_of: str = "") -> None:
        self._fail("add")
        if in_place_of:
            self.revoke(in_place_of, new.author)
        words = {one: getattr(new, one) for one in ("key_id", "tenant", "name", "service")}
        made = {
            "created_by": new.author,
            "person": new.person or new.author,
            "created_s": 1.0,
            "expires_s": new.expires_s,
        }
        self.known_keys[new.key_id] = (KeyView(**words, **made), new.sha256)

    def note_uses(self, used_s: Mapping[str, float]) -> None:
        self._fail("note_uses")
        for key, sha256 in list(self.known_keys.values()):
            if sha256 in used_s:
                used = key.model_copy(update={"used_s": used_s[sha256]})
                self.known_keys[key.key_id] = (used, sha256)

    def open_tenant(self, tenant: str, author: str) -> None:
        self.openings[tenant] = Opening(2.0)

    def require_from(self, tenant: str, from_s: int, author: str) -> None:
        self.openings[tenant] = Opening(2.0, from_s)

    def standing_limits(self) -> tuple[SubjectLimits, ...]:
        return tuple(
            SubjectLimits(tenant=tenant, person=person, key_id=key_id, limits=limits)
            for (tenant, person, key_id), layers in self.limited.items()
            if (limits := together(layers.values())) != RequestLimits()
        )

    def change_limits(
        self, subject: AllowanceSubject, change: LimitChangeRequest, _author: str, rank: LimitRank
    ) -> None:
        layers = self.limited.setdefault((subject.tenant, subject.person, subject.key_id), {})
        layers |= changed_layers(layers, change, rank)

    def claimed(self) -> Mapping[str, Mapping[str, float]]:
        return {
            person: {t: at_s for t, at_s in named.items() if (person, t) not in self.dismissed}
            for person, named in self.named_guests.items()
        }

    def claim(self, person: str, tenants: Collection[str]) -> None:
        self.named_guests[person] = dict.fromkeys(tenants, time.time())

    def end_membership(self, person: str, tenant: str, _author: str) -> None:
        self.dismissed.add((person, tenant))

    def allow_membership(self, person: str, tenant: str) -> None:
        self.dismissed.discard((person, tenant))
        self.named_guests[person].pop(tenant, None)

    def revoke(self, key_id: str, author: str) -> None:
        key, sha256 = self.known_keys[key_id]
        self.known_keys[key_id] = (key.model_copy(update={"revoked_s": 2.0}), sha256)


def sync_of(slurm: ScriptedSlurm, mode: str = "enforce") -> ClusterState:
    cluster_state = ClusterState(settings(mode), slurm, Admission(settings(mode).daemon.mode))
    cluster_state.set_policy(policy_of(tenant("vision", 2000)), {})
    return cluster_state


async def desire(
    cluster_state: ClusterState,
    array_job_id: int,
    run: frozenset[int],
    *told: Any,
    avoid: Sequence[str] = (),
) -> DesiredSlotsAnswer:
    """Desire slots as a launcher that has just looked; ``told`` are note and urgency."""
    after = cluster_state.desired_slots_versions.get(array_job_id, 0)
    return await cluster_state.set_desired_slots(array_job_id, run, *told, avoid=avoid, after=after)
