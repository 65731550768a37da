"""Which replicas are kept only for requests that may come, and how many that spared a wait."""

from dataclasses import dataclass, replace

from slicewise.cluster.language.keep_warm import MOST_DAYS, WarmDay
from slicewise.cluster.language.periods import date_text
from slicewise.launcher.rules.gateway.types import Load


@dataclass(frozen=True)
class WarmReplicas:
    """Replicas that serve at a look, and that no request of then needs.

    Attributes:
        kept: how many these are.
        needed_places: requests that all others work on at the same time.
    """

    kept: int = 0
    needed_places: int = 0


@dataclass(frozen=True)
class KeptWarm:
    """What was kept warm between two looks, and at the second one.

    Attributes:
        replicas: at the second look; not whole where several services share replicas.
        replica_s: replica-seconds between the looks.
        spared: requests that began in these replicas and would have waited without them, at least;
            None where several services share replicas: whose requests these are is not known.
    """

    replicas: float = 0.0
    replica_s: float = 0.0
    spared: int | None = 0

    def part(self, share: float) -> "KeptWarm":
        """Return the share of one service of those that share the replicas."""
        return replace(
            self, replicas=share * self.replicas, replica_s=share * self.replica_s, spared=None
        )


def warm_replicas(staying: int, places: int, load: Load, *, is_idle: bool) -> WarmReplicas:
    """Return which replicas of those that serve and stay are kept.

    A replica works on ``places`` requests at a time. ``is_idle`` is False where a request was
    answered since the last look, though none is there now: that one has needed a replica.
    """
    needed = max(-(-load.total // places), int(not is_idle))
    return WarmReplicas(max(0, staying - needed), needed * places)


def spared(before: WarmReplicas, places: int, answered: int, load: Load) -> int:
    """Return how many requests have begun since then that needed a replica which was kept.

    At least: of requests that began and ended between two looks, ``answered`` of them, it is known
    only where no request was there before.
    """
    if not before.kept:
        return 0
    if not before.needed_places:
        return answered + load.in_flight
    return min(max(0, load.in_flight - before.needed_places), before.kept * places)


@dataclass(frozen=True)
class WarmTotal:
    """What a service has kept warm since it was first seen, and on the last days, oldest first."""

    millislice_s: int = 0
    spared: int = 0
    days: tuple[WarmDay, ...] = ()


def added_up(total: WarmTotal, more: KeptWarm, cost_millislices: int, at_s: float) -> WarmTotal:
    """Add what was kept until ``at_s``, in Unix seconds, by replicas of that cost."""
    if not more.replica_s:
        return total
    millislice_s = round(more.replica_s * cost_millislices)
    today = date_text(int(at_s), "UTC")
    days = {day.day: day for day in total.days}
    day = days.pop(today, WarmDay(today, 0))
    begun = day.spared if more.spared is None else (day.spared or 0) + more.spared
    return WarmTotal(
        total.millislice_s + millislice_s,
        total.spared + (more.spared or 0),
        (*days.values(), WarmDay(today, day.millislice_s + millislice_s, begun))[-MOST_DAYS:],
    )
