"""Draws failures of nodes by the seed, before a simulation begins."""

from random import Random

from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.site.failures import Outage


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
    outages = []
    for node in cluster.nodes:
        drawn = Random(f"{seed}/{node.name}")  # noqa: S311 -- no secret
        at_s = first_s + drawn.expovariate(1 / of.mean_s)
        while at_s < end_s:
            if at_s + of.repair_s > begin_s:
                outages.append(Outage(at_s, at_s + of.repair_s, node.name))
            at_s += of.repair_s + drawn.expovariate(1 / of.mean_s)
    return tuple(sorted(outages))
