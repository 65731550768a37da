"""Checks the managed partitions, and whether the GPUs of their nodes have prices."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, Severity, error, hint, warning
from slicewise.cluster.language.jobs import PartitionView, node_reasons
from slicewise.cluster.language.slurm.node_states import INVALID
from slicewise.slurm_plugin.rules.site.facts import SlurmFacts, Wanted
from slicewise.slurm_plugin.rules.slurm_config.allocations import (
    SliceBilling,
    allocation_findings,
    billed_per_slice,
)
from slicewise.slurm_plugin.rules.slurm_config.conf_words import not_of_partition
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import (
    partition_findings,
    price_findings,
    takes_greatest,
)

_SHOWN = 5
_DOWN = frozenset({"DOWN", "FAIL", "NOT_RESPONDING", "UNKNOWN", *INVALID})
_OF_WORDS = {
    "OverSubscribe=EXCLUSIVE": "each job gets whole nodes: one slice takes, and is charged for, all"
    " GPUs of its node",
    "ExclusiveUser=YES": "users never share a node: where one has a slice, the others' lie idle",
    "RootOnly=YES": "only root submits jobs to it: no tenant does, and no service",
    "ReqResv=YES": "it takes no job without a reservation, and services have none",
}
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})


def partition_checks(facts: SlurmFacts, wanted: Wanted) -> tuple[Finding, ...]:
    """Return what the managed partitions lack, or have otherwise than quotas need it."""
    managed = frozenset(wanted.partitions)
    own = [view for view in facts.partitions if view.name in managed]
    return (
        *(by_mode(line, wanted.mode) for line in _lines(facts, wanted)),
        *price_findings(facts.nodes, managed, wanted.costs),
        *(finding for view in own for finding in _state(view)),
        *(word for view in own for word in _words(view)),
        *_without_nodes(facts, own),
        *_nodes_away(facts, managed),
        *_allocations(facts, wanted),
    )


def _lines(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    return partition_findings(
        facts.config,
        facts.partitions,
        wanted.partitions,
        wanted.costs,
        wanted.billing,
        nodes=facts.nodes,
    )


def slice_billing(facts: SlurmFacts, wanted: Wanted) -> SliceBilling | None:
    """Return what a slice bills now, and with the weights that are wanted; None if nothing does."""
    now = billed_per_slice(
        facts.nodes,
        facts.partitions,
        wanted.partitions,
        wanted.costs,
        takes_greatest=takes_greatest(facts.config),
    )
    return None if now is None else SliceBilling(now, wanted.billing.per_slice)


def counts_use(facts: SlurmFacts, partitions: Collection[str]) -> bool:
    """Whether fair share goes by what jobs of these partitions were billed by weights before."""
    weight = facts.config.get("PriorityWeightFairShare", "0")
    views = [view for view in facts.partitions if view.name in partitions]
    return (
        weight.isdecimal()
        and int(weight) > 0
        and any(any(view.billing_weights.values()) for view in views)
    )


def _allocations(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    if facts.billing_limits and (billing := slice_billing(facts, wanted)):
        yield from allocation_findings(facts.billing_limits, billing, wanted.costs)


def by_mode(finding: Finding, mode: str) -> Finding:
    """Return the finding; before mode enforce no gate, and an AllowQos of the site's, are right.

    Their lines are no mends then: slurmctld exits where a partition names a QOS that does not
    exist, and without the gate a partition without AllowQos takes jobs in any QOS.
    """
    if finding.code == Code.PARTITION_GATE and mode != "enforce":
        why = f"{finding.why}, once mode is enforce"
        return replace(finding, severity=Severity.HINT, why=why, mends=())
    return finding


def _state(view: PartitionView) -> Iterator[Finding]:
    if not view.is_up:
        yield warning(
            Code.NODE_DOWN,
            f"Partition {view.name} is not up",
            "no job is submitted to it, or none starts in it",
            Mend(Place.RESTART, f"scontrol update PartitionName={view.name} State=UP"),
        )


def _words(view: PartitionView) -> Iterator[Finding]:
    for word in sorted(view.words & _OF_WORDS.keys()):
        yield error(
            Code.PARTITION_WORDS,
            f"Partition {view.name} has {word}",
            _OF_WORDS[word],
            not_of_partition(view.name, word),
        )


def _nodes_away(facts: SlurmFacts, managed: frozenset[str]) -> Iterator[Finding]:
    """Name nodes with GPUs that are down, and as a hint those that somebody drains."""
    nodes = sorted(
        (node for node in facts.nodes if node.is_in(managed) and (node.gpus or node.untyped_gpus)),
        key=lambda node: node.name,
    )
    away = [node for node in nodes if not node.states.isdisjoint(_DOWN)]
    down = [node.name for node in away]
    kept = [node for node in nodes if node not in away and not node.states.isdisjoint(_DRAINED)]
    drained = [node.name for node in kept]
    if down:
        yield warning(
            Code.NODE_DOWN,
            f"{_named(down)} down or invalid, or slurmd there does not answer"
            f"{node_reasons(away, _SHOWN)}",
            "their GPUs count in capacity and run nothing",
            Mend(Place.RESTART, f"scontrol show node {','.join(down)}"),
            Mend(Place.NODE, "systemctl status slurmd"),
        )
    if drained:
        yield hint(
            Code.NODE_DOWN,
            f"{_named(drained)} drained{node_reasons(kept, _SHOWN)}",
            "no job starts there until somebody resumes them",
            Mend(Place.RESTART, "sinfo -R"),
            Mend(Place.RESTART, f"scontrol update NodeName={','.join(drained)} State=RESUME"),
            advice="Once the reason that sinfo -R shows is gone.",
        )


def _named(nodes: list[str]) -> str:
    more = len(nodes) - _SHOWN
    shown = ", ".join(nodes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"Node {shown} is" if len(nodes) == 1 else f"Nodes {shown} are"


def _without_nodes(facts: SlurmFacts, own: list[PartitionView]) -> Iterator[Finding]:
    for view in own:
        nodes = [node for node in facts.nodes if node.is_in(frozenset({view.name}))]
        if not any(node.gpus or node.untyped_gpus for node in nodes):
            yield error(
                Code.NODE_GRES,
                f"No node of partition {view.name} has GPUs in Slurm",
                "nothing can be started there",
                Mend(Place.NODE, "slicewise node gres"),
                advice="The node's lines for gres.conf and slurm.conf: slicewise node gres, on it.",
            )
