"""What is free on nodes at one moment: carried on from look to look where nodes did not change."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cluster.language.jobs import NodeView
from slurm_plugin.quota.demand import free_on_nodes


@dataclass(frozen=True)
class FreeNodes:
    """Free GPU instances on the nodes of one look. Few nodes change between two looks."""

    nodes: tuple[NodeView, ...] = field(hash=False)
    partitions: frozenset[str]

    @cached_property
    def by_name(self) -> Mapping[str, Counter[str]]:
        """Free GPU instances by type, for each node on which Slurm starts jobs."""
        return free_on_nodes(self.nodes, self.partitions)

    def knowing(self, before: "FreeNodes") -> "FreeNodes":
        """The same nodes; what an earlier look found of the very same records is kept."""
        if len(self.nodes) != len(before.nodes) or self.partitions != before.partitions:
            return self
        changed = {
            one.name: (one, old)
            for one, old in zip(self.nodes, before.nodes, strict=True)
            if one is not old
        }
        known = before.by_name
        now = free_on_nodes((one for one, _ in changed.values()), self.partitions)
        is_same = all(one.name == old.name for one, old in changed.values())
        if not is_same or now.keys() != changed.keys() & known.keys():
            # Other nodes are in use: their order follows that of all nodes.
            return self
        found = FreeNodes(self.nodes, self.partitions)
        vars(found)["by_name"] = {**known, **now}
        return found
