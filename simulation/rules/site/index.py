"""What the simulator knows of the last look, and carries on: few records change between two looks.

The model shows the same object for a job or a node until it changes. So what an earlier look found
of the very same records holds. Decisions get values that are those of a fresh look.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_

from slicewise.cluster.language.jobs import JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import (
    HeldRuns,
    JobsByHolder,
    PricedRun,
    jobs_by_holder,
    managed,
    priced_run,
    summed_up,
)
from slicewise.slurm_plugin.rules.quota.nodes import free_on_nodes
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView


@dataclass(frozen=True)
class IndexedView(SlurmView):
    """A look of which it is known already what jobs hold and what is free on nodes."""

    there: JobsByHolder = field(kw_only=True)
    free_on: Mapping[str, Counter[str]] = field(kw_only=True, hash=False)

    def jobs_by_holder(self, rules: QuotaRules) -> JobsByHolder:  # noqa: ARG002 -- of this site
        """The jobs of managed partitions as they were seen."""
        return self.there

    def free(self, partitions: frozenset[str]) -> Mapping[str, Counter[str]]:  # noqa: ARG002
        """The instances that are free on nodes of the partitions."""
        return self.free_on


class JobIndex:
    """What jobs hold, and who waits in which QOS, from look to look."""

    def __init__(
        self,
        partitions: frozenset[str],
        costs: Mapping[str, Millislices],
        models: Mapping[str, str],
    ) -> None:
        self._partitions, self._costs = partitions, costs
        self._last = jobs_by_holder((), partitions, costs, models)
        self._by_id: dict[int, PricedRun] = {}

    def look(self, jobs: Iterable[JobView]) -> JobsByHolder:
        """The same as ``jobs_by_holder`` of these jobs."""
        runs, others = managed(jobs, self._partitions)
        self._last = self._last.with_others(others, self._held(runs))
        return self._last

    def _held(self, runs: tuple[JobView, ...]) -> HeldRuns:
        before = self._last.held
        if len(runs) == len(before.jobs) and all(map(is_, runs, before.jobs)):
            return before
        there = {id(job): job for job in runs}
        # What was known keeps its record alive, so no other record has that id.
        new = {
            key: priced_run(there[key], self._costs) for key in there.keys() - self._by_id.keys()
        }
        gone = [self._by_id[key] for key in self._by_id.keys() - there.keys()]
        known = {**self._by_id, **new}
        self._by_id = {key: known[key] for key in there}
        changed = {one.place for one in (*new.values(), *gone)}
        places = {at: of for at, of in before.places.items() if at not in changed}
        for place in changed:
            stay = (one for one in before.places.get(place, ()) if id(one.job) in there)
            if found := (*stay, *(one for one in new.values() if one.place == place)):
                places[place] = found
        return summed_up(runs, tuple(self._by_id.values()), places)


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
                one.name: (one, old)
                for one, old in zip(nodes, before, strict=True)
                if one is not old
            }
            now = free_on_nodes((one for one, _ in changed.values()), self._partitions)
            is_same = all(one.name == old.name for one, old in changed.values())
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
        before, copies, found = self._copies, {}, []
        for job, copy in zip(jobs, told, strict=True):
            kept = copy
            if copy is not job:
                known = before.get(id(job))
                if known is not None and known[1].reason == copy.reason:
                    kept = known[1]
                copies[id(job)] = job, kept
            found.append(kept)
        self._copies = copies
        return tuple(found)
