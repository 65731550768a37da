"""How long a service's starts take, by where the weights were: what was seen, and what is assumed.

Where Slurm will start the next replica nobody knows, so nobody knows whether its weights lie there:
the classes of the last starts say how likely each is, and of each it is known how long it takes.
Whether it has to wait for a node's boot is known: that is no class, but time added where it does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from slicewise.cluster.language.starts import StartClass
from slicewise.launcher.rules.autoscale.histogram import added, added_bins, of_length, quantile
from slicewise.launcher.rules.autoscale.types import ReplicaStart

_EDGES_S = tuple(0.5 * 1.25**step for step in range(43))
"""Edges of bins from half a second to over an hour and a half, each a quarter more than the one
before: finer than starts repeat."""
_Weights = Annotated[tuple[float, ...], of_length(len(_EDGES_S) + 1)]
_KEEP = 0.97
"""Share of the old weights that stays with each start, so that the last 30 or so count: models and
clusters change."""
_KEEP_CLASS = 0.7
"""Share of the old weights of classes that stays with each start, so that the last three or so
count: a cache is switched on, or other weights are applied, from one start to the next."""
_HIGH = 0.75
"""Quantile of starts to plan with: one that takes longer than three of four, since a replica that
comes later than expected is late."""


def _assumed(about_s: float, weight: float) -> _Weights:
    """Return a distribution with a little weight in the bin of one value."""
    empty = (0.0,) * (len(_EDGES_S) + 1)
    return tuple(weight * share for share in added(empty, _EDGES_S, about_s, 1.0))


_QUEUE, _LOAD, _BOOT = _assumed(3.0, 0.5), _assumed(25.0, 0.5), _assumed(200.0, 0.5)
"""Before anything was seen; servers with eight GPUs boot in three to four minutes."""


@dataclass(frozen=True)
class ClassLoads:
    """What was seen of the starts of one class.

    Attributes:
        share: how many of the last starts were of it; old ones fade away.
        load: weights of bins of how long they loaded.
    """

    share: float = 0.0
    load: _Weights = _LOAD


@dataclass(frozen=True)
class Delays:
    """Distributions of start delays, in seconds.

    Attributes:
        queue: from release to the allotment of a slice.
        load: from the allotment until the model answers, of a start of a class that nobody knows.
        loads: the same by the class of the start.
        boot: from the allotment until the node has booted, of those that had to.
        wakes_node: whether the next start has to wait for that, by the last look.
    """

    queue: _Weights = _QUEUE
    load: _Weights = _LOAD
    loads: Mapping[StartClass, ClassLoads] = field(default_factory=dict, hash=False)
    boot: _Weights = _BOOT
    wakes_node: bool = False

    @property
    def queue_s(self) -> float:
        """Seconds in Slurm's queue that three of four starts don't exceed."""
        return quantile(self.queue, _EDGES_S, _HIGH)

    @property
    def load_s(self) -> float:
        """Seconds of loading that the next start does not exceed in three of four cases."""
        return quantile(self.load, _EDGES_S, _HIGH)

    @property
    def boot_s(self) -> float:
        """Seconds of a node's boot that three of four boots don't exceed."""
        return quantile(self.boot, _EDGES_S, _HIGH)

    @property
    def start_s(self) -> float:
        """Seconds that most starts don't exceed: queue, load, and boot where a node is to boot."""
        return self.queue_s + (self.boot_s if self.wakes_node else 0.0) + self.load_s


def learn_starts(delays: Delays, starts: tuple[ReplicaStart, ...]) -> Delays:
    """Add starts that have come to their end."""
    for start in starts:
        loads = {
            start_class: replace(seen, share=_KEEP_CLASS * seen.share)
            for start_class, seen in delays.loads.items()
        }
        before = loads.get(start.start_class, ClassLoads())
        load = added(before.load, _EDGES_S, start.load_s, _KEEP)
        loads[start.start_class] = ClassLoads(before.share + 1, load)
        boot = added(delays.boot, _EDGES_S, start.boot_s, _KEEP) if start.boot_s else delays.boot
        queue = added(delays.queue, _EDGES_S, start.queue_s, _KEEP)
        delays = replace(delays, queue=queue, load=_mixed(loads), loads=loads, boot=boot)
    return delays


def _mixed(loads: Mapping[StartClass, ClassLoads]) -> _Weights:
    """Add the loads of all classes up, each as often as the last starts were of it."""
    mixed: tuple[float, ...] = ()
    for seen in loads.values():
        chance = seen.share / sum(seen.load)
        mixed = added_bins(mixed, [chance * weight for weight in seen.load])
    return mixed
