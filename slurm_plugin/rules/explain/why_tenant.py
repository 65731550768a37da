"""Explains a tenant's state: what it holds, what waits and for what, what may start now."""

from collections.abc import Iterable, Iterator

from slicewise.cluster.language.jobs import WAITING, JobView, is_resting
from slicewise.cluster.language.units import counted, slices_text, slices_words
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyRow, WhyTable
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.explain.headroom import (
    BUDGET_RUN_S,
    Explanation,
    TypeRoom,
    explain,
)
from slicewise.slurm_plugin.rules.explain.shortage import WhyInput
from slicewise.slurm_plugin.rules.explain.why_texts import group_rows, own_rows
from slicewise.slurm_plugin.rules.quota.quota_texts import calendar_words
from slicewise.slurm_plugin.rules.quota.tenants import subtree


def why_tenant(tenant: str, sight: WhyInput) -> WhyAnswer:
    """Explain a tenant of the policy; the tenants below it appear as a sum."""
    explanation = explain(tenant, sight.situation)
    waiting = [job for job in _waiting(sight) if holder_of(job) == tenant]
    count = _count(waiting)
    held = slices_text(explanation.in_use_millislices)
    limit = slices_words(explanation.limit_millislices)
    return WhyAnswer(
        about=tenant,
        headline=f"{tenant} holds {held} of {limit}; {_wait(count)}.",
        sentences=tuple(_sentences(explanation, _by_calendar(tenant, sight))),
        tables=tuple(
            table
            for table in (
                WhyTable(heading="Holding now", rows=_holding(tenant, explanation, sight)),
                WhyTable(heading="Waiting", rows=group_rows(waiting, sight)),
                WhyTable(heading="May start now", rows=tuple(map(_room, explanation.types))),
            )
            if table.rows
        ),
        hints=tuple(_hints(tenant, count)),
    )


def why_no_tenant(account: str, sight: WhyInput) -> WhyAnswer | None:
    """Explain the jobs of an account that is no tenant, or no longer one; None if it has none."""
    own = [(job, sight.cost(job)) for job in sight.allotted() if job.account == account]
    waiting = [job for job in _waiting(sight) if job.account == account]
    if not own and not waiting:
        return None
    held, count = slices_words(sum(cost for _, cost in own)), _count(waiting)
    policy = sight.situation.policy
    never = _count(job for job in waiting if holder_of(job) not in policy)
    above = {holder_of(job) for job in (*waiting, *(job for job, _ in own))} & policy.keys()
    tables = (
        WhyTable(heading="Holding now", rows=own_rows(own)),
        WhyTable(heading="Waiting", rows=group_rows(waiting, sight)),
    )
    which = " in no tenant's QOS" if above else ""
    return WhyAnswer(
        about=account,
        headline=f"{account} is no tenant, and its jobs hold {held}; {_wait(count)}.",
        sentences=(
            "It has no quota. What runs goes on, and is charged if it began under one.",
            *(f"Its jobs in the QOS of {name} count for {name}." for name in sorted(above)),
            *(
                (f"What waits{which} never starts in the managed partitions without one.",)
                if never
                else ()
            ),
        ),
        tables=tuple(table for table in tables if table.rows),
        hints=(
            f"An operator can give it a quota: slicewise tenant-quota set {account} --nominal N",
            *((f"Or cancel what waits: scancel --state=PENDING -A {account}",) if never else ()),
        ),
    )


def _waiting(sight: WhyInput) -> Iterator[JobView]:
    for job in sight.jobs:
        if job.state in WAITING and not sight.partitions.isdisjoint(job.partition.split(",")):
            yield job


def _count(waiting: Iterable[JobView]) -> int:
    return sum(job.tasks for job in waiting if not is_resting(job))


def _wait(count: int) -> str:
    return f"{counted(count, 'job')} {'waits' if count == 1 else 'wait'}"


def _by_calendar(tenant: str, sight: WhyInput) -> str:
    """Say which of the tenant's amounts the calendar's windows change now; "" if none."""
    if tenant not in sight.as_set:
        return ""
    words = calendar_words(sight.as_set[tenant].quota, sight.situation.policy[tenant].quota)
    return f"By the calendar it has now: {words}." if words else ""


def _sentences(explanation: Explanation, by_calendar: str) -> Iterable[str]:
    yield (
        f"Its nominal quota is {slices_words(explanation.nominal_millislices)};"
        f" {slices_text(explanation.lent_millislices)} of it are lent,"
        f" {slices_text(explanation.borrowed_millislices)} borrowed from others."
    )
    if by_calendar:
        yield by_calendar
    yield (
        f"Guaranteed in its own QOS: {slices_text(explanation.guaranteed_in_use_millislices)} of"
        f" {slices_words(explanation.guaranteed_millislices)} in use."
    )
    above = explanation.in_use_millislices - explanation.limit_millislices
    if above > 0:
        yield (
            f"It holds {slices_words(above)} more than it may now, as after a lower quota or a"
            " loan that was taken back: nothing new starts, and what runs on borrowed quota is"
            " requeued when its owners want it."
        )
    if explanation.startable_millislice_s is None:
        yield "No budget limits it."
    else:
        hours = slices_text(explanation.startable_millislice_s // BUDGET_RUN_S)
        yield f"The budget of {explanation.payer} leaves {hours} slice-hours for new runs."


def _holding(tenant: str, explanation: Explanation, sight: WhyInput) -> tuple[WhyRow, ...]:
    # Of the account's jobs those in another tenant's QOS count for that one.
    own = [
        (job, sight.cost(job))
        for job in sight.allotted()
        if job.account == tenant == holder_of(job)
    ]
    below = explanation.in_use_millislices - sum(cost for _, cost in own)
    rows = own_rows(own)
    if not below:
        return rows
    has_tenants = len(subtree(sight.situation.policy, tenant)) > 1
    what = f"{'tenants' if has_tenants else 'accounts'} below {tenant}"
    return (*rows, WhyRow(what=what, amount_millislices=below))


def _room(room: TypeRoom) -> WhyRow:
    """How many instances of one type may start, and the limit that allows no more."""
    bound = room.borrowed_bound if room.borrowed else room.guaranteed_bound
    counts = ((room.guaranteed, "guaranteed"), (room.borrowed, "borrowed"))
    some = ", ".join(f"{count} {word}" for count, word in counts if count)
    return WhyRow(
        what=room.gres_type, note=f"{f'{some}; no more' if some else 'none'}: {bound.words}"
    )


def _hints(tenant: str, waiting: int) -> Iterable[str]:
    if waiting:
        yield "For one of its jobs: slicewise why JOB"
    yield f"Which limits apply, type by type: slicewise why {tenant} --limits"
