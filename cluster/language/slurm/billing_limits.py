"""Reads the limits on billing that Slurm holds, with what of them is used."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ACCOUNT = re.compile(
    r"ClusterName=(?P<cluster>\S+) Account=(?P<account>\S+)"
    r" UserName=(?P<user>[^\s(]*)\S* Partition=(?P<partition>\S*) .*"
)
_QOS = re.compile(r"QOS=(?P<qos>[^\s(]+)\(\d+\)")
_LIMITS = re.compile(r"\s+(?P<name>GrpTRES|GrpTRESMins)=(?P<tres>\S+)")
_BILLING = re.compile(r"(?:^|,)billing=(?P<limit>\d{1,18})\((?P<used>\d{1,18})\)")


@dataclass(frozen=True)
class BillingLimit:
    """A limit on billing of an account, of one of its users, or of a QOS.

    Attributes:
        name: GrpTRES, for what may be in use at a time; GrpTRESMins, for minutes of it, with what
            was used before, as far as that has not decayed.
        limit, used: billing, or minutes of billing.
        account, user, partition, cluster: "" of a QOS; ``user`` is "" of an account's own limit.
        qos: "" of an association.
    """

    name: str
    limit: int
    used: int
    account: str = ""
    user: str = ""
    partition: str = ""
    cluster: str = ""
    qos: str = ""


def parse_billing_limits(text: str) -> tuple[BillingLimit, ...]:
    """Read ``scontrol show assoc_mgr flags=assoc,qos``: limits that are set, in their order.

    Of a record whose name can't be read nothing is taken.
    """
    return tuple(_limits(text.splitlines()))


def _limits(lines: list[str]) -> Iterator[BillingLimit]:
    owner: dict[str, str] | None = None
    for line in lines:
        if line and not line[0].isspace():
            match = _ACCOUNT.fullmatch(line) or _QOS.fullmatch(line)
            owner = match.groupdict() if match else None
        elif (
            owner is not None
            and (limit_match := _LIMITS.fullmatch(line.rstrip()))
            and (billing := _BILLING.search(limit_match["tres"]))
        ):
            yield BillingLimit(
                limit_match["name"], int(billing["limit"]), int(billing["used"]), **owner
            )
