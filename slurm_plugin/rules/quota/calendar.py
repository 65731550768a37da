"""Applies the calendar's windows, which change tenants' quotas at certain hours or for an event.

At any moment each tenant's nominal, borrowing limit and lending limit are those of a window that
holds then, or else those of its own quota. If several windows hold, an event's window wins (it has
a first and a last second), then the newest window. Caps are applied last, and the lowest cap
counts: the nominals of a tenant and of those below it are scaled down in proportion until they fit,
and these tenants borrow no further than the cap.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import PlainSerializer

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices, slices_text
from slicewise.slurm_plugin.rules.quota.lending import within_limits
from slicewise.slurm_plugin.rules.quota.tenants import (
    ancestors,
    by_parent,
    check_slices,
    downward,
    effective_nominal,
    missing,
    overcommitted_millislices,
    subtree,
)
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Quota

ALL = ""
"""Stands for all tenants together in place of a tenant's name. Only a cap may have it."""

DAY_MIN = 24 * 60
WEEK_DAYS = 7
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_NO_CAP = 1 << 62
_SLICE = 1000
"""Millislices of a slice."""
_NEWEST = 1 << 62
_FIRST_S, _LAST_S = -62_000_000_000, 253_400_000_000
"""Within the years 1 to 9999, with weeks to spare: no calendar has others."""


class WindowKind(StrEnum):
    """The value that a window sets."""

    NOMINAL = "nominal"
    BORROWING = "borrowing"
    LENDING = "lending"
    CAP = "cap"


@dataclass(frozen=True)
class Window:
    """A time at which a tenant has another quota.

    Attributes:
        window_id: the ledger's number, which rises with every window; 0 before it is recorded.
        tenant: a tenant's name, or ``ALL``.
        days: the days on which the window begins, 0 is Monday; empty means every day.
        begin_min, end_min: minutes of the local day; an end that is not later than the begin is on
            the next day.
        first_s, last_s: Unix seconds before and from which the window does not hold; None means no
            bound. The window of an event has both.
    """

    window_id: int
    tenant: str
    kind: WindowKind
    amount_millislices: Millislices
    days: Annotated[frozenset[int], PlainSerializer(sorted, list[int])] = frozenset()
    begin_min: int = 0
    end_min: int = 0
    first_s: int | None = None
    last_s: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class WindowRecord:
    """A window with its history.

    Attributes:
        author: the user who set it.
        set_s: when it was set, in Unix seconds.
        ended_by, ended_s, ended_why: who removed it, when and why; "", None and "" before that.
    """

    window: Window
    author: str
    set_s: int
    ended_by: str = ""
    ended_s: int | None = None
    ended_why: str = ""


@dataclass(frozen=True)
class Moment:
    """A Unix second with its local time: the weekday (0 is Monday), and minutes since midnight."""

    at_s: float
    weekday: int
    minute: int


def holds(window: Window, moment: Moment) -> bool:
    """Whether the window holds at the moment."""
    if window.first_s is not None and moment.at_s < window.first_s:
        return False
    if window.last_s is not None and moment.at_s >= window.last_s:
        return False
    begun = _on(window, moment.weekday) and moment.minute >= window.begin_min
    if window.begin_min < window.end_min:
        return begun and moment.minute < window.end_min
    yesterday = _on(window, (moment.weekday - 1) % WEEK_DAYS)
    return begun or (yesterday and moment.minute < window.end_min)


def _on(window: Window, weekday: int) -> bool:
    return not window.days or weekday in window.days


def in_force(policy: Policy, windows: Iterable[Window], moment: Moment) -> Policy:
    """Return the policy as it is at the moment; windows of removed tenants are ignored."""
    holding = [
        window for window in windows if holds(window, moment) and window.tenant in {ALL, *policy}
    ]
    if not holding:
        return policy
    return _fitted(_with_windows(policy, holding), _lowest_caps(holding))


def capped(
    policy: Policy, windows: Iterable[Window], moment: Moment, held: Mapping[str, int]
) -> frozenset[str]:
    """Return the tenants that together hold more than a cap that is in force allows.

    ``held`` has millislices by tenant. All tenants of the capped subtree are returned.
    """
    over: set[str] = set()
    for top, cap in _lowest_caps(window for window in windows if holds(window, moment)).items():
        if top in {ALL, *policy}:
            names = policy.keys() if top == ALL else subtree(policy, top)
            over.update(names if sum(held.get(name, 0) for name in names) > cap else ())
    return frozenset(over)


def loosest(policy: Policy, windows: Iterable[Window]) -> Policy:
    """Return every tenant with the most that its quota or any of its windows gives it.

    This policy may never be in force, but a loan beyond it can never be right.
    """
    after = dict(policy)
    for window in windows:
        if window.tenant in policy:
            quota = after[window.tenant].quota
            larger = _larger(quota, _with(quota, window.kind, window.amount_millislices))
            after[window.tenant] = replace(after[window.tenant], quota=larger)
    return after


def loosely_within(
    policy: Policy, windows: Sequence[Window], loans: Iterable[Loan]
) -> tuple[Loan, ...]:
    """Cut loans to what the policy allows now or at another time of its windows."""
    if not windows:
        return within_limits(policy, loans)
    most = loosest(policy, windows)
    return within_limits(most, loans, lends=effective_nominal(most))


def rivals(policy: Policy, windows: Iterable[Window], window: Window) -> tuple[Window, ...]:
    """Return the windows with which the window could conflict: those of nominals in its tree.

    Only together with these a nominal could fall short of what the tenants below have.
    """
    if window.kind is not WindowKind.NOMINAL or window.tenant not in policy:
        return ()
    top = (window.tenant, *ancestors(policy, window.tenant))[-1]
    same_tree = frozenset(subtree(policy, top))
    return tuple(
        window
        for window in windows
        if window.kind is WindowKind.NOMINAL and window.tenant in same_tree
    )


def check_window(
    policy: Policy, windows: Sequence[Window], window: Window, moments: Iterable[Moment]
) -> None:
    """Check whether the window may stand beside ``windows``, its ``rivals``.

    ``moments`` are those at which any of these windows begins or ends.

    Raises InvalidInputError: SW-TENANT-UNKNOWN; SW-VALUE for an amount, days, minutes or
    seconds out of range, or if the window holds at none of the moments; SW-QUOTA-TREE if at one of
    them a nominal would fall short of what the tenants below have together, or fall shorter than it
    does without the window.
    """
    if window.tenant not in policy and window != replace(window, tenant=ALL, kind=WindowKind.CAP):
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"{window.tenant!r} is not a tenant.",
            "slicewise tenant list shows all; only a cap can apply to all tenants together.",
        )
    check_numbers(window)
    moments = tuple(moments)
    if not any(holds(window, moment) for moment in moments):
        raise InvalidInputError(
            Code.VALUE,
            "The window would never apply: none of its days and hours is between first and last.",
            "Give --weekdays within that time, or leave --weekdays out.",
        )
    if window.kind is WindowKind.NOMINAL:
        _check_tree(policy, windows, window, moments)


def clock_text(minute: int) -> str:
    """Format minutes since midnight as ``08:30``."""
    return f"{minute // 60:02}:{minute % 60:02}"


def overcommitted_at(
    policy: Policy,
    windows: Sequence[Window],
    window: Window,
    moments: Iterable[Moment],
    capacity_millislices: int,
    *,
    is_removed: bool = False,
) -> tuple[Moment, int] | None:
    """Return when the window first overcommits the cluster, and by how many millislices.

    That is the first of the moments at which the window, beside ``windows``, brings the nominals at
    the top above the capacity, or further above it than they are without the window. If
    ``is_removed``, its removal is judged in the same way. None if there is no such moment.
    """
    for moment, holding in _beside(windows, window, moments):
        having = [*holding, window if is_removed else _newest(window)]
        with_it, without = (
            overcommitted_millislices(in_force(policy, those, moment), capacity_millislices)
            for those in (having, holding)
        )
        before, after = (with_it, without) if is_removed else (without, with_it)
        if after > before:
            return moment, after
    return None


def moment_text(moment: Moment) -> str:
    """Format a moment as ``Mon 08:30``."""
    return f"{DAYS[moment.weekday].capitalize()} {clock_text(moment.minute)}"


def _with_windows(policy: Policy, holding: Iterable[Window]) -> Policy:
    """Return the policy with quotas as windows set them, not yet fitted to caps and the tree."""
    after = dict(policy)
    for window in sorted(holding, key=_rank):
        if window.tenant in after:
            quota = _with(after[window.tenant].quota, window.kind, window.amount_millislices)
            after[window.tenant] = replace(after[window.tenant], quota=quota)
    return after


def _rank(window: Window) -> tuple[bool, int]:
    """Order windows so that those that win come last."""
    return window.first_s is not None and window.last_s is not None, window.window_id


def _with(quota: Quota, kind: WindowKind, amount: Millislices) -> Quota:
    match kind:
        case WindowKind.BORROWING:
            return replace(quota, borrowing_limit_millislices=amount)
        case WindowKind.LENDING:
            return replace(quota, lending_limit_millislices=amount)
        case WindowKind.NOMINAL:
            return replace(quota, nominal_millislices=amount)
        case WindowKind.CAP:
            return quota


def _larger(quota: Quota, other: Quota) -> Quota:
    """Return the first quota with the larger nominal and limits of both."""
    return replace(
        quota,
        nominal_millislices=max(quota.nominal_millislices, other.nominal_millislices),
        borrowing_limit_millislices=max(
            quota.borrowing_limit_millislices, other.borrowing_limit_millislices
        ),
        lending_limit_millislices=max(
            quota.lending_limit_millislices, other.lending_limit_millislices
        ),
    )


def _lowest_caps(holding: Iterable[Window]) -> Mapping[str, int]:
    caps: dict[str, int] = {}
    for window in holding:
        if window.kind is WindowKind.CAP:
            caps[window.tenant] = min(window.amount_millislices, caps.get(window.tenant, _NO_CAP))
    return caps


def _fitted(policy: Policy, caps: Mapping[str, int]) -> Policy:
    """Fit nominals into caps and into the nominals above them, then limit borrowing by the caps.

    If the nominals below a tenant do not fit, they and its guaranteed quota are scaled down in
    proportion, to whole slices.
    """
    below = by_parent(policy)
    whole: dict[str, int] = {}
    asks: dict[str, int] = {}
    for name in (*reversed(downward(policy)), ALL):
        nominal = policy[name].quota.nominal_millislices if name else 0
        sum_below = sum(asks[child] for child in below.get(name, ()))
        whole[name] = max(nominal, sum_below)
        asks[name] = min(nominal or sum_below, caps.get(name, _NO_CAP))
    has = {ALL: asks[ALL]}
    cap = {ALL: caps.get(ALL, _NO_CAP)}
    for name in (ALL, *downward(policy)):
        children = below.get(name, ())
        own = whole[name] - sum(asks[child] for child in children)
        shares = _shares([*(asks[child] for child in children), own], has[name])
        for child, share in zip(children, shares[:-1], strict=True):
            has[child] = share
            cap[child] = min(cap[name], caps.get(child, _NO_CAP))
    return _bounded(policy, has, cap)


def _shares(asks: Sequence[int], total: int) -> Sequence[int]:
    """Split ``total`` millislices in proportion to what is asked for; at most that is given.

    A part of a slice runs no job, so each share is a whole number of slices unless it is all that
    was asked for; the largest remainders are rounded up first.
    """
    whole = sum(asks)
    if total >= whole:
        return asks
    shares = [ask * total // whole // _SLICE * _SLICE for ask in asks]
    order = sorted(range(len(asks)), key=lambda index: shares[index] * whole - asks[index] * total)
    left = total - sum(shares)
    before = left + 1
    while left < before:
        before = left
        for index in order:
            more = min(_SLICE, asks[index] - shares[index])
            if more <= left:
                shares[index] += more
                left -= more
    return shares


def _bounded(policy: Policy, has: Mapping[str, int], cap: Mapping[str, int]) -> Policy:
    """Apply the nominals, and reduce borrowing limits so that no tenant can exceed its cap."""
    after = {}
    for name, tenant in policy.items():
        nominal = min(tenant.quota.nominal_millislices, has[name])
        borrowing = min(tenant.quota.borrowing_limit_millislices, cap[name] - has[name])
        quota = replace(
            tenant.quota,
            nominal_millislices=Millislices(nominal),
            borrowing_limit_millislices=Millislices(borrowing),
        )
        after[name] = replace(tenant, quota=quota)
    return after


def check_numbers(window: Window) -> None:
    """Check each number of the window; its moments can be computed only then.

    Raises InvalidInputError (SW-VALUE) for an amount, days, minutes or seconds out of range.
    """
    check_slices("A window", window.amount_millislices)
    minutes = (window.begin_min, window.end_min)
    if not all(0 <= minute < DAY_MIN for minute in minutes) or not window.days <= set(
        range(WEEK_DAYS)
    ):
        raise InvalidInputError(
            Code.VALUE,
            "A window needs days of the week and times of day that exist.",
            "Write --weekdays mon-fri --start-time 08:00 --end-time 18:00.",
        )
    first_s, last_s = window.first_s, window.last_s
    if not all(_FIRST_S <= at_s <= _LAST_S for at_s in (first_s, last_s) if at_s is not None):
        raise InvalidInputError(
            Code.VALUE,
            "A window can't begin or end in a year without a date.",
            "Give a --first and --last of this century.",
        )
    if first_s is not None and last_s is not None and last_s <= first_s:
        raise InvalidInputError(
            Code.VALUE,
            "The window would end before it begins.",
            "Give a --last later than --first.",
        )


def _check_tree(
    policy: Policy, windows: Sequence[Window], window: Window, moments: Iterable[Moment]
) -> None:
    for moment, holding in _beside(windows, window, moments):
        before = missing(_with_windows(policy, holding))
        after = _with_windows(policy, [*holding, _newest(window)])
        now = missing(after)
        if worse := [name for name in after if now[name] > before[name]]:
            raise _too_small(after, worse[0], moment)


def _newest(window: Window) -> Window:
    """Return the window with the rank that it will have among the existing windows."""
    return replace(window, window_id=_NEWEST)


def _beside(
    windows: Sequence[Window], window: Window, moments: Iterable[Moment]
) -> Iterator[tuple[Moment, Sequence[Window]]]:
    """Yield each set of other windows beside which the window holds, with its first moment."""
    seen: set[tuple[int, ...]] = set()
    for moment in (moment for moment in moments if holds(window, moment)):
        holding = [window for window in windows if holds(window, moment)]
        ids = tuple(window.window_id for window in holding)
        if ids not in seen:
            seen.add(ids)
            yield moment, holding


def _too_small(policy: Policy, name: str, moment: Moment) -> InvalidInputError:
    has, needed = policy[name].quota.nominal_millislices, effective_nominal(policy)[name]
    return InvalidInputError(
        Code.QUOTA_TREE,
        f"From {moment_text(moment)} on, {name} would have {slices_text(has)} slices and the"
        f" tenants below it {slices_text(needed)}.",
        f"First set a window of {slices_text(needed)} or more for {name}, or windows of less for "
        "those below it.",
    )
