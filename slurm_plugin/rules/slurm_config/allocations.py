"""Says what a site's limits on billing are worth once partitions bill slices.

A site grants hours by GrpTRESMins=billing and GPUs at a time by GrpTRES=billing. With other weights
the same numbers are other amounts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, setting, warning
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.cluster.language.units import GPU_MILLISLICES
from slicewise.slurm_plugin.rules.common.qos_names import is_ours
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_SLICES = Fraction(GPU_MILLISLICES, 1000)
"""Of a GPU of weight 1."""
_MINUTES = 60
_CLOSE = Fraction(1, 50)
"""What is worth nearly as much: it is not said."""
_NAME = re.compile(r"[A-Za-z0-9_.@-]+")
_FINEST = 10**6
_MOST_SHOWN = 20
_BEFORE = "Before the weights are changed: docs/how-to/billing.md, Allocations."


@dataclass(frozen=True)
class SliceBilling:
    """What Slurm bills for a slice.

    Attributes:
        now: on the managed partitions, on average where all of their nodes are in use: with the
            CPUs and memory that come with the GPUs.
        due: with the weights that are proposed.
    """

    now: Fraction
    due: Fraction

    @property
    def stays(self) -> bool:
        """Whether a limit goes on to be worth nearly what it is."""
        return abs(self.due / self.now - 1) <= _CLOSE


def billed_per_slice(
    nodes: Iterable[NodeView],
    partitions: Sequence[PartitionView],
    managed: Sequence[str],
    costs: Mapping[str, int],
    *,
    takes_greatest: bool,
) -> Fraction | None:
    """What one slice bills now, on average; None if nothing of the managed nodes has a price.

    ``takes_greatest`` is whether PriorityFlags has MAX_TRES.
    """
    views = {view.name: view for view in partitions}
    own = [views[name] for name in managed if name in views]
    billed = slices = Fraction(0)
    for node in nodes:
        view = next((partition for partition in own if node.is_in({partition.name})), None)
        held = sum(costs.get(gres_type, 0) * count for gres_type, count in node.gpus.items())
        if view is None or not held:
            continue
        slices += Fraction(held, 1000)
        parts = _parts(node, view.billing_weights or {"cpu": 1.0})
        billed += max(parts, default=Fraction(0)) if takes_greatest else sum(parts)
    return billed / slices if billed else None


def _parts(node: NodeView, weights: Mapping[str, float]) -> list[Fraction]:
    """What each resource of a whole node bills."""
    gpus = {gres_type: count for gres_type, count in node.gpus.items() if not is_pad(gres_type)}
    amounts = {
        "cpu": node.cpus,
        "mem": node.memory_mib,
        "node": 1,
        "gres/gpu": sum(gpus.values()) + node.untyped_gpus,
        **{f"gres/gpu:{gres_type.lower()}": count for gres_type, count in gpus.items()},
    }
    return [
        Fraction(weight).limit_denominator(_FINEST) * amounts.get(tres, 0)
        for tres, weight in weights.items()
    ]


def fitting_unit(now: Fraction, costs: Iterable[int]) -> Fraction:
    """Return the billing_per_slice with which limits are worth most nearly what they are."""
    nearest = BillingUnit(now).nearest(costs)
    return min(nearest, key=lambda unit: max(unit / now, now / unit))


def allocations(limits: Iterable[BillingLimit]) -> tuple[BillingLimit, ...]:
    """Return the site's own limits."""
    return tuple(limit for limit in limits if not is_ours(limit.qos))


def allocation_findings(
    limits: Iterable[BillingLimit], billing: SliceBilling, costs: Mapping[str, int]
) -> Iterator[Finding]:
    """Say of each limit what is left of it, now and with the weights that are to come."""
    own = allocations(limits)
    if billing.stays:
        least = BillingUnit(billing.due).held(min(costs.values(), default=0))
        yield from (_too_small(limit, least) for limit in own if limit.limit < least)
        return
    fitting = fitting_unit(billing.now, costs.values())
    better = [] if fitting == billing.due else [setting("cluster", unit_line(fitting))]
    shown = [
        (limit, better or [Mend(Place.ACCOUNTS, line) for line in raised(limit, billing)])
        for limit in own
    ]
    for limit, mends in shown[:_MOST_SHOWN]:
        yield warning(
            Code.LIMITS_MINUTES,
            f"{owner_of(limit)} has {limit.name}=billing={limit.limit} of the site's own,"
            f" {worth_text(limit, billing)}",
            f"a slice bills {amount_text(billing.now)} now, and {amount_text(billing.due)} with"
            " the weights that are to come",
            *mends,
            advice=_BEFORE,
        )
    if rest := shown[_MOST_SHOWN:]:
        yield warning(
            Code.LIMITS_MINUTES,
            f"{len(rest)} more limits on billing will be worth something else",
            "",
            *dict.fromkeys(mend for _, mends in rest for mend in mends),
            advice=f"{_BEFORE} slicewise setup writes them all into allocations.txt.",
        )


def _too_small(limit: BillingLimit, least: int) -> Finding:
    return warning(
        Code.LIMITS_MINUTES,
        f"{owner_of(limit)} has {limit.name}=billing={limit.limit} of the site's own",
        f"the smallest GPU bills {least}: none of its jobs with GPUs starts",
        advice="Raise it, or take it away: docs/how-to/billing.md, Allocations.",
    )


def worth_text(limit: BillingLimit, billing: SliceBilling) -> str:
    """What is left of a limit, in GPUs and slices, or hours of them, now and then."""
    left, of = limit.limit, ""
    if limit.name == "GrpTRESMins":
        left, of = max(limit.limit - limit.used, 0), "-hours"
    parts = [
        f"{amount_text(slices / _SLICES)} GPU{of or 's'} ({amount_text(slices)} slice{of or 's'})"
        for unit in (billing.now, billing.due)
        for slices in [left / unit / (_MINUTES if of else 1)]
    ]
    which = f"of which {left} are left: " if of else ""
    return f"{which}{parts[0]} now, {parts[1]} then"


def raised(limit: BillingLimit, billing: SliceBilling) -> tuple[str, ...]:
    """The command that keeps what is left of a limit; () for names that sacctmgr might misread.

    What was used before stays in the old unit, until it has decayed.
    """
    owner = (limit.account, limit.user, limit.partition, limit.cluster, limit.qos)
    if not all(_NAME.fullmatch(name) for name in owner if name):
        return ()
    used = min(limit.used, limit.limit) if limit.name == "GrpTRESMins" else 0
    most = used + round((limit.limit - used) * billing.due / billing.now)
    if limit.qos:
        which = f"qos {limit.qos}"
    elif limit.user:
        place = f" partition={limit.partition}" if limit.partition else ""
        which = (
            f"user where name={limit.user} account={limit.account} cluster={limit.cluster}{place}"
        )
    else:
        which = f"account where name={limit.account} cluster={limit.cluster}"
    return (f"sacctmgr modify {which} set {limit.name}=billing={most}",)


def owner_of(limit: BillingLimit) -> str:
    """Whose limit it is, as a beginning of a sentence."""
    if limit.qos:
        return f"QOS {limit.qos}"
    return f"User {limit.user} of {limit.account}" if limit.user else f"Account {limit.account}"


def unit_line(unit: Fraction) -> str:
    """The line of slicewise.toml."""
    return f'billing_per_slice = "{unit}"'


def amount_text(number: Fraction) -> str:
    """An amount, as exact as one reads it."""
    value = float(number)
    return f"{value:.1f}".removesuffix(".0") if value >= _TENTHS else f"{value:.3g}"


_TENTHS = 10
"""From here on one decimal is enough."""
