"""What is simulated: a cluster, its past, the present plan and a changed one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.plans import SitePlan

WARM_UP_S = 86_400.0
"""Seconds before each start that are simulated and do not count."""


@dataclass(frozen=True)
class Experiment:
    """All inputs of a simulation.

    Attributes:
        costs: millislices of a GPU or an instance, by GRES type.
        jobs: the history.
        changed: the plan that is compared with the present one; None for none.
        start_s, end_s: which part of the history counts, in Unix seconds; None is all of it.
        known_from_s: from when on the history has all jobs that came, in Unix seconds: no part
            begins earlier, unless jobs count from before; None is from when on jobs count.
        offsets: over how many starts the history is cut for estimates.
        warm_up_s: seconds before each start that are simulated and do not count.
        tail_s: seconds at most for which a part goes on until its jobs have started.
        seed: of drawn numbers: the failures of nodes.
        grace_s: seconds of a recall where neither plan is Slicewise's.
    """

    cluster: SimulatedCluster
    costs: Mapping[str, Millislices] = field(hash=False)
    jobs: tuple[HistoryJob, ...] = field(hash=False)
    present: SitePlan
    changed: SitePlan | None = None
    start_s: float | None = None
    end_s: float | None = None
    known_from_s: float | None = None
    offsets: int = 4
    warm_up_s: float = WARM_UP_S
    tail_s: float = WARM_UP_S
    seed: int = 0
    grace_s: int = 60
