"""Computes what is billed: what each payer is charged, day by day, for each user and service."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.statement import Day, pieces
from slicewise.slurm_plugin.rules.accounting.types import ShareLine, StatementRow


@dataclass(frozen=True, order=True)
class Charged:
    """For whose runs a line is.

    Attributes:
        start_s: begin of the day, or of the billing period in it, in Unix seconds.
        end_s: end of the day, or of the billing period in it; exclusive.
        payer: the tenant whose budget pays.
        service: "" for jobs that are no replicas.
        user: of runs of that user; "-" for shares.
        gpu_types: types of the GPU instances, sorted; not how many each run has. None for shares.
        owner: whose service it is, if it is another tenant's.
    """

    start_s: int
    end_s: int
    payer: str
    tenant: str
    service: str
    user: str
    gpu_types: tuple[str, ...]
    owner: str = ""


@dataclass(frozen=True)
class ChargeLine:
    """What was used, without what was waived."""

    of: Charged
    used_millislice_s: MillisliceSeconds


def charge_lines(
    rows: Iterable[StatementRow],
    days: Sequence[Day],
    from_s: int,
    until_s: int,
    shares: Iterable[ShareLine] = (),
) -> tuple[ChargeLine, ...]:
    """Lines of the use from ``from_s`` up to ``until_s``, in order, none of them of nothing.

    They add up to what the tenants were charged in that part of the statement: an owner's line
    of shares is below 0. ``days`` are those of that time, and ``rows`` are whole.
    """
    ends = {day: following.start_s for day, following in pairwise(days)}
    sums: Counter[Charged] = Counter()
    for day, piece in pieces(rows, days, from_s, until_s):
        run = piece.run
        of = Charged(
            max(from_s, day.start_s),
            min(until_s, ends.get(day, until_s)),
            run.payer,
            run.tenant,
            piece.service,
            run.user,
            tuple(sorted(run.gres)),
        )
        sums[of] += piece.used_millislice_s
    day_ends = {day.start_s: end_s for day, end_s in ends.items()}
    for share in shares:
        owner, _, service = share.service.partition("/")
        charged = Charged(
            share.start_s,
            min(until_s, day_ends.get(share.start_s, until_s)),
            share.payer,
            share.tenant,
            service,
            NOBODY,
            (),
            "" if owner == share.tenant else owner,
        )
        sums[charged] += (
            share.shared_millislice_s - share.relieved_millislice_s + share.pooled_millislice_s
        )
    return tuple(
        ChargeLine(of, MillisliceSeconds(amount)) for of, amount in sorted(sums.items()) if amount
    )
