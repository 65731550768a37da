"""Decides which hours of shared services' runs are divided now, and what is booked of each."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from slicewise.cluster.language.audience import EVERY_TENANT
from slicewise.cluster.language.token_weights import TokenWeights
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.shares import Share, SharedHour, shares
from slicewise.slurm_plugin.rules.accounting.types import RunKey
from slicewise.slurm_plugin.rules.quota.tenants import ancestors, effective_nominal, parent
from slicewise.slurm_plugin.rules.quota.types import Policy

HOUR_S = 3600
USAGE_DELAY_S = 600
"""Seconds after an hour's end in which gateways may tell of requests that ended in it."""
CORRECTED_S = 7 * 86_400
"""Seconds for which an hour is divided anew if requests of it are told late. Later than that it
changes only with what the run itself is charged."""


@dataclass(frozen=True)
class Divided:
    """An hour as it was divided last.

    Attributes:
        number: how often it was divided.
        idle: who bore the idle time, by weights; without any, the owner.
    """

    number: int
    requests: int
    amount_millislice_s: int
    weights: TokenWeights
    idle: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class SharedRun:
    """A run of a service that somebody has asked, or that others than its owner may ask.

    Attributes:
        payer: the tenant whose budget pays for the run.
        end_s: Unix seconds; None while it is not settled.
        used_millislice_s: what a settled run has used, without what was waived.
        audiences: tenants that might ask it, with the Unix second from which on, oldest first.
        counted: requests that ended in an hour, by the Unix second in which it begins.
        divided: how hours were divided, by the same.
        service: OWNER/NAME; "" where none is recorded.
    """

    run_id: int
    key: RunKey
    tenant: str
    payer: str
    cost_millislices: Millislices
    end_s: int | None
    used_millislice_s: int
    audiences: tuple[tuple[int, AbstractSet[str]], ...] = ()
    counted: Mapping[int, int] = field(default_factory=dict, hash=False)
    divided: Mapping[int, Divided] = field(default_factory=dict, hash=False)
    service: str = ""

    def audience(self, hour_s: int) -> AbstractSet[str]:
        """The tenants that might ask it during that hour."""
        by_then = [names for from_s, names in self.audiences if from_s < hour_s + HOUR_S]
        return by_then[-1] if by_then else frozenset()


@dataclass(frozen=True)
class DueHour:
    """An hour that is to be divided: what of it the run had, and what it used then."""

    run: SharedRun
    hour_s: int
    from_s: int
    until_s: int
    amount_millislice_s: MillisliceSeconds


@dataclass(frozen=True)
class HourUse:
    """What requests used that ended in an hour, and what is booked of the hour.

    Attributes:
        busy_ms: how much of the hour some of them had begun and not ended.
        tokens: prompt, cached prompt and output tokens, by payer.
        booked: millislice-seconds by tenant and part.
        payers: whose budget was charged, by tenant.
    """

    requests: int = 0
    busy_ms: int = 0
    tokens: Mapping[str, tuple[int, int, int]] = field(default_factory=dict, hash=False)
    booked: Mapping[Share, int] = field(default_factory=dict, hash=False)
    payers: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Division:
    """What is booked of an hour.

    Attributes:
        changes: what each has more or less than before, with the tenant whose budget pays.
    """

    due: DueHour
    use: HourUse
    weights: TokenWeights
    idle: Mapping[str, int] = field(hash=False)
    changes: tuple[tuple[Share, str, int], ...] = ()

    @property
    def after(self) -> int:
        """How often the hour was divided before."""
        divided = self.due.run.divided.get(self.due.hour_s)
        return divided.number if divided else 0


def due_hours(run: SharedRun, now_s: int, *, is_live: bool) -> Iterator[DueHour]:
    """The hours of a run that are over and not divided, or not as what is known now says.

    A run that is not settled is divided while it is seen to run (``is_live``): else it has ended,
    and accounting has not said when.
    """
    if run.end_s is None and not is_live:
        return
    start_s = run.key.start_s
    until_s = now_s - USAGE_DELAY_S
    end_s = until_s if run.end_s is None else run.end_s
    first_s = max(start_s, now_s - CORRECTED_S + HOUR_S) // HOUR_S * HOUR_S
    running = range(first_s, min(end_s, until_s - HOUR_S) + 1, HOUR_S)
    for hour_s in sorted({*running, *run.divided}):
        due = _hour(run, hour_s, end_s)
        if _is_due(due, is_final=hour_s < first_s):
            yield due


def _hour(run: SharedRun, hour_s: int, end_s: int) -> DueHour:
    from_s = max(hour_s, min(run.key.start_s, hour_s + HOUR_S))
    until_s = max(from_s, min(end_s, hour_s + HOUR_S))
    return DueHour(run, hour_s, from_s, until_s, MillisliceSeconds(_used(run, from_s, until_s)))


def _used(run: SharedRun, from_s: int, until_s: int) -> int:
    """What the run used in that time; nothing if it was waived."""
    used = run.cost_millislices * (until_s - from_s)
    return used if run.end_s is None or run.used_millislice_s else 0


def _is_due(due: DueHour, *, is_final: bool) -> bool:
    counted = due.run.counted.get(due.hour_s, 0)
    divided = due.run.divided.get(due.hour_s)
    if divided is not None:
        is_told_late = not is_final and divided.requests != counted
        return is_told_late or divided.amount_millislice_s != due.amount_millislice_s
    return bool((counted or due.run.audience(due.hour_s)) and due.amount_millislice_s)


def division(
    due: DueHour,
    use: HourUse,
    payers: Mapping[str, str],
    idle: Mapping[str, int],
    weights: TokenWeights,
) -> Division:
    """What to book of an hour.

    ``payers`` are the tenants whose budgets pay, by tenant; one that is missing pays itself.
    ``idle`` says who bears idle time, by weights; ``weights`` are those of tokens. Once an hour was
    divided, both stay, and so do the budgets that were charged.
    """
    run, before = due.run, due.run.divided.get(due.hour_s)
    weights = before.weights if before else weights
    idle = before.idle if before else idle
    target = shares(
        SharedHour(
            run.tenant,
            due.amount_millislice_s,
            max(1, 1000 * (due.until_s - due.from_s)),
            use.busy_ms,
            {payer: weights.weigh(*tokens) for payer, tokens in use.tokens.items()},
            idle,
        )
    )
    budgets = {**payers, **use.payers, run.tenant: run.payer}
    changes = tuple(
        (share, budgets.get(share.tenant, share.tenant), change)
        for share in sorted(target.keys() | use.booked.keys())
        if (change := target.get(share, 0) - use.booked.get(share, 0))
    )
    return Division(due, use, weights, idle, changes)


def idle_weights(policy: Policy, audience: AbstractSet[str], owner: str) -> Mapping[str, int]:
    """Who bears the idle time of a service that these may ask: by nominal quota, without the owner.

    A tenant in an audience stands for all below it, too, each with what it has itself, and ``*``
    for all tenants. Of an audience without quota it is empty: the owner bears it.
    """
    nominal = effective_nominal(policy)
    own = Counter(nominal)
    for name in policy:
        if above := parent(policy, name):
            own[above] -= nominal[name]
    return {
        name: amount
        for name, amount in own.items()
        if amount > 0 and name != owner
        if audience & {EVERY_TENANT, name, *ancestors(policy, name)}
    }


def values(divided: Division) -> Mapping[str, Any]:
    """The hour as the ledger's function takes it."""
    due, key = divided.due, divided.due.run.key
    return {
        "cluster": key.cluster,
        "job_id": key.job_id,
        "start_s": key.start_s,
        "hour_s": due.hour_s,
        "after": divided.after,
        "from_s": due.from_s,
        "until_s": due.until_s,
        "amount": due.amount_millislice_s,
        "requests": divided.use.requests,
        "busy_ms": divided.use.busy_ms,
        "weights": vars(divided.weights),
        "idle": divided.idle,
        "shares": [
            {"tenant": share.tenant, "payer": payer, "part": share.part.value, "amount": change}
            for share, payer, change in divided.changes
        ],
    }
