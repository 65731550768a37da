"""Failures of nodes: when each fails and is back, drawn by the seed before a simulation begins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from simulation.cluster import SimulatedCluster
from simulation.slurm_model.model import SlurmModel


@dataclass(frozen=True, order=True)
class Outage:
    """A node that is down between two Unix seconds."""

    down_s: float
    up_s: float
    node: str


def outages(
    cluster: SimulatedCluster, seed: int, *, first_s: float, begin_s: float, end_s: float
) -> tuple[Outage, ...]:
    """Draw the outages of all nodes that touch the time from ``begin_s`` to ``end_s``, in order.

    All nodes are up at ``first_s``. The time to a failure is exponential. Each node has numbers of
    its own, so the same seed, node and ``first_s`` give the same outages, whichever part of the
    time is asked for.
    """
    of = cluster.failures
    if of is None:
        return ()
    found = []
    for node in cluster.nodes:
        drawn = Random(f"{seed}/{node.name}")  # noqa: S311 -- no secret
        at_s = first_s + drawn.expovariate(1 / of.mean_s)
        while at_s < end_s:
            if at_s + of.repair_s > begin_s:
                found.append(Outage(at_s, at_s + of.repair_s, node.name))
            at_s += of.repair_s + drawn.expovariate(1 / of.mean_s)
    return tuple(sorted(found))


class FailingNodes:
    """Lets nodes of the model fail and come back when it is time."""

    def __init__(self, model: SlurmModel, those: Sequence[Outage]) -> None:
        self._model = model
        self._events = sorted(_events(those))
        self._next = 0

    def next_s(self) -> float:
        """When the next node fails or is back; inf if none ever does."""
        return self._events[self._next][0] if self._next < len(self._events) else inf

    def advance(self) -> bool:
        """Let those fail and come back whose time has come; return whether any did."""
        first = self._next
        while self.next_s() <= self._model.now_s:
            _, is_up, node = self._events[self._next]
            self._next += 1
            if is_up:
                self._model.restore_node(node)
            else:
                self._model.fail_node(node)
        return self._next > first


def _events(those: Sequence[Outage]) -> Iterator[tuple[float, bool, str]]:
    for one in those:
        yield one.down_s, False, one.node
        yield one.up_s, True, one.node
