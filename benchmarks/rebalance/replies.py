"""A Slurm of values: it replies immediately what a site shows, and accepts every change."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from benchmarks.rebalance import site
from benchmarks.rebalance.site import PARTITION, Site
from slicewise.cluster.language.jobs import JobView, NodeView, PartitionView, RunRecord, StepView
from slicewise.cluster.language.slurm.interface import (
    Association,
    Changed,
    JobChange,
    PriorityRow,
    Qos,
    Submission,
    Target,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.slurm.batch import named_qos
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS

CLUSTER = "bench"
_NORMAL = frozenset({"normal"})


class Replies(CommandSlurm):
    """Replies for one site, which may be exchanged for another one of the same tenants."""

    def __init__(self, shown: Site) -> None:
        self.show(shown)
        self._accounts = {
            name: Association(CLUSTER, name, "", one.parent or "root", _NORMAL, "", {})
            for name, one in shown.policy.items()
        }
        self._qos = {"normal": Qos("normal", {}, frozenset())}

    def show(self, shown: Site) -> None:
        """Show that site from now on."""
        self._site = shown
        self._records = site.records(shown)
        self._scripts = site.directives(shown)

    async def clock_s(self, known_for_s: float = 0.0) -> float:  # noqa: ARG002
        """The time of this host."""
        return wall_s()

    async def config(self) -> Mapping[str, str]:
        """The part of Slurm's configuration that is read."""
        return {"AccountingStorageTRES": f"billing,gres/gpu:{site.ONE},gres/gpu:{site.THREE}"}

    async def partitions(self) -> tuple[PartitionView, ...]:
        """The managed partition, behind the gate."""
        weights = {f"gres/gpu:{kind}": float(cost) for kind, cost in site.COSTS.items()}
        return (PartitionView(PARTITION, weights, GATE_QOS),)

    async def jobs(self) -> tuple[JobView, ...]:
        """All jobs of the site."""
        return self._site.jobs

    async def nodes(self) -> tuple[NodeView, ...]:
        """All nodes of the site."""
        return self._site.nodes

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:  # noqa: ARG002
        """No steps."""
        return ()

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Indices of the GPUs that these jobs hold, by job id and node."""
        return {job.job_id: self._site.indices[job.job_id] for job in jobs}

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        """Runs that have ended since then, and all that run."""
        return tuple(one for one in self._records if one.end_s is None or one.end_s > since_s)

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        """The batch scripts of services' arrays."""
        return {job_id: Submission(self._scripts[job_id], "/") for job_id in job_ids}

    async def associations(self) -> tuple[Association, ...]:
        """The tenants' accounts."""
        return tuple(self._accounts.values())

    async def qos(self) -> tuple[Qos, ...]:
        """All QOS."""
        return tuple(self._qos.values())

    async def priorities(self, job_ids: Collection[int]) -> tuple[PriorityRow, ...]:
        """Rows in which no job has a site_factor yet."""
        return tuple(PriorityRow(job_id, 0, 0) for job_id in job_ids)

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:  # noqa: ARG002
        """Accept all changes; none is refused."""
        return {}

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        """Apply changes that ``limits.changes`` writes for tenants; none is refused.

        Raises AssertionError for any other change.
        """
        for change in changes:
            match change:
                case ("add", "qos", names, *words):
                    for name in names.split(","):
                        self._qos[name] = _changed_qos(Qos(name, {}, frozenset()), words)
                case ("modify", "qos", "where", where, "set", *words):
                    for name in _names(where):
                        self._qos[name] = _changed_qos(self._qos[name], words)
                case ("modify", "account", "where", where, _, "set", *words):
                    for name in _names(where):
                        self._accounts[name] = _changed_account(self._accounts[name], words)
                case _:
                    raise AssertionError(change)
        return {}

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        """Apply changes as ``sacctmgr`` does, and show the QOS that they name."""
        refused, named = await self.sacctmgr(changes), named_qos(changes)
        return Changed(refused, tuple(one for name, one in self._qos.items() if name in named))


def _names(where: str) -> Sequence[str]:
    return where.removeprefix("name=").split(",")


def _changed_qos(row: Qos, words: Sequence[str]) -> Qos:
    for word in words:
        field, _, value = word.partition("=")
        match field:
            case "grptresrunmins":
                row = replace(row, grp_tres_run_mins=_limits(value, row.grp_tres_run_mins))
            case "preempt+" | "preempt":
                row = replace(row, preempt=row.preempt | set(value.split(",")))
            case "preemptmode":
                row = replace(row, preempt_mode=value)
            case "flags" | "flags+":
                row = replace(row, flags=row.flags | {value})
            case "grptres":
                row = replace(row, grp_tres=_limits(value, row.grp_tres))
            case _:
                raise AssertionError(word)
    return row


def _changed_account(row: Association, words: Sequence[str]) -> Association:
    for word in words:
        field, _, value = word.partition("=")
        match field:
            case "grptres":
                row = replace(row, grp_tres=_limits(value, row.grp_tres))
            case "qos+":
                own = row.qos | set(value.split(","))
                row = replace(row, qos=own, own_qos=own)
            case "defaultqos":
                row = replace(row, default_qos=value, own_default_qos=value)
            case _:
                raise AssertionError(word)
    return row


def _limits(text: str, before: Mapping[str, int]) -> Mapping[str, int]:
    pairs = (part.partition("=") for part in text.split(","))
    after = {**before, **{tres: int(value) for tres, _, value in pairs}}
    return {tres: value for tres, value in after.items() if value >= 0}
