"""Figures of one moment as history keeps them, and by which steps it is shown.

None of it is money: what was charged is in the ledger's books.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TEN_S, MINUTE_S, HOUR_S = 10, 60, 3600
STORED_S = (TEN_S, MINUTE_S, HOUR_S)
"""Steps in which figures are kept, the finest first; each divides the next one."""
_DAY_S = 24 * HOUR_S
KEPT_S: Mapping[int, int] = {TEN_S: 6 * HOUR_S, MINUTE_S: 7 * _DAY_S, HOUR_S: 800 * _DAY_S}
"""Seconds for which figures of each step are kept: the finest for today's questions, means of an
hour for two years of a month's report. What that costs the database: docs/how-to/sizing.md."""
_SHOWN_S = (
    *(TEN_S, MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, 30 * MINUTE_S),
    *(HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, _DAY_S, 7 * _DAY_S, 28 * _DAY_S),
)
"""Steps in which figures are shown."""
_SETTLED_S = {TEN_S: 20, MINUTE_S: 120, HOUR_S: 120}
"""Seconds after a step's end within which a daemon that runs has written it."""


@dataclass(frozen=True)
class ClusterFigures:
    """The managed slices by state, in millislices, as ``slicewise overview`` shows them.

    Attributes:
        waiting: of jobs that could start if there were room.
        late: of those of them that wait within guaranteed quota longer than a recall takes.
    """

    used: int
    lent: int
    idle: int
    draining: int
    down: int
    waiting: int
    late: int


@dataclass(frozen=True)
class TenantFigures:
    """A tenant with the tenants below it, in millislices.

    Attributes:
        budget_left: millislice-seconds that the budget which pays has left; None without one.
    """

    tenant: str
    nominal: int
    in_use: int
    borrowed: int
    lent: int
    waiting: int
    late: int
    budget_left: int | None


@dataclass(frozen=True)
class ServiceFigures:
    """A service, all generations together.

    Attributes:
        desired, backlog, requests: replicas that the launcher wants, requests that wait, and those
            that came each second; None if it has told nothing lately.
        p95: milliseconds within which 95 % of the last requests were answered; None without any.
    """

    tenant: str
    service: str
    ready: int
    desired: int | None
    backlog: int | None
    requests: float | None
    p95: float | None


@dataclass(frozen=True)
class HistorySample:
    """What was seen in one look. ``at_s`` is the Unix second at which its ten seconds begin."""

    at_s: int
    cluster: ClusterFigures
    tenants: tuple[TenantFigures, ...] = field(hash=False)
    services: tuple[ServiceFigures, ...] = field(hash=False)


@dataclass(frozen=True)
class HistorySteps:
    """The steps of an answer.

    Attributes:
        stored_s: the step of the rows that it is read from.
        step_s: the step that is shown: a multiple of that.
        times_s: Unix seconds at which each begins.
    """

    stored_s: int
    step_s: int
    times_s: tuple[int, ...]


def history_steps(
    since_s: int, until_s: int, now_s: int, kept_s: Mapping[int, int], most: int
) -> HistorySteps:
    """Choose the finest steps of which ``most`` span the time, and which are still kept then.

    ``kept_s``: how long each stored step is kept, in seconds. Steps that are not over yet, or may
    not be written yet, are left out.
    """
    until_s = min(until_s, now_s)
    stored_s, step_s = next(
        (
            (stored_s, step_s)
            for stored_s, step_s in map(_of_stored, _SHOWN_S)
            if until_s - since_s <= (most - 1) * step_s
            and (stored_s == HOUR_S or now_s - since_s <= kept_s[stored_s])
        ),
        _of_stored(_SHOWN_S[-1]),
    )
    last_s = min(until_s, now_s - _SETTLED_S[stored_s] - step_s + 1)
    times_s = range(since_s // step_s * step_s, last_s, step_s)
    return HistorySteps(stored_s, step_s, tuple(times_s[-most:]))


def _of_stored(shown_s: int) -> tuple[int, int]:
    """The coarsest stored step of which the shown one is a multiple, and the shown one."""
    return max(step_s for step_s in STORED_S if shown_s % step_s == 0), shown_s
