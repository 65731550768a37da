"""What the simulator knows of the last look, and carries on: few records change between two looks.

The model shows the same object for a job or a node until it changes. So what an earlier look found
of the very same records holds. Decisions get values that are those of a fresh look.
"""

from collections import Counter
from collections.abc import Mapping

from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.slurm_plugin.rules.quota.nodes import free_on_nodes


class NodeIndex:
    """What is free on nodes, from look to look."""

    def __init__(self, partitions: frozenset[str]) -> None:
        self._partitions = partitions
        self._nodes: tuple[NodeView, ...] = ()
        self._free: Mapping[str, Counter[str]] = {}

    def look(self, nodes: tuple[NodeView, ...]) -> Mapping[str, Counter[str]]:
        """The same as ``demand.free_on_nodes`` of these nodes."""
        before, self._nodes = self._nodes, nodes
        if len(nodes) == len(before):
            changed = {
                node.name: (node, old)
                for node, old in zip(nodes, before, strict=True)
                if node is not old
            }
            now = free_on_nodes((node for node, _ in changed.values()), self._partitions)
            is_same = all(node.name == old.name for node, old in changed.values())
            if is_same and now.keys() == changed.keys() & self._free.keys():
                self._free = {**self._free, **now}
                return self._free
        # Other nodes are in use: their order follows that of all nodes.
        self._free = free_on_nodes(nodes, self._partitions)
        return self._free


class ToldIndex:
    """Jobs with other reasons than Slurm's: the same object while job and reason are the same."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[JobView, JobView]] = {}

    def look(self, jobs: tuple[JobView, ...], told: tuple[JobView, ...]) -> tuple[JobView, ...]:
        """The jobs as they were ``told``, with the last look's copies where these are equal."""
        if told is jobs:
            self._copies = {}
            return told
        before, copies, jobs_now = self._copies, {}, []
        for job, copy in zip(jobs, told, strict=True):
            kept = copy
            if copy is not job:
                copy_before = before.get(id(job))
                if copy_before is not None and copy_before[1].reason == copy.reason:
                    kept = copy_before[1]
                copies[id(job)] = job, kept
            jobs_now.append(kept)
        self._copies = copies
        return tuple(jobs_now)
