"""Messages of what was: the cluster's, a tenant's and a service's figures over time."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.rpc.message import NO_CONTROLS, Answer, Asks, Message, Request

MOST_POINTS = 1000
"""Most points of each series in one answer."""
CLUSTER = "cluster"
"""What a request is about that is about no tenant."""

HistoryUnit = Literal["millislices", "millislice_s", "replicas", "requests", "requests_per_s", "ms"]
HistorySecond = Annotated[int, Field(ge=0, le=2**40)]
"""Unix seconds."""


class HistorySeries(Message):
    """One figure over time; None is a gap: nobody looked then, or the figure was not known.

    Attributes:
        name: of the cluster ``used``, ``lent``, ``idle``, ``draining`` and ``down`` (the states of
            ``slicewise overview``, which add up to its capacity), ``waiting`` and ``late``. Of a
            tenant, with the tenants below it: ``nominal``, ``in_use``, ``borrowed``, ``lent``,
            ``waiting``, ``late``, ``budget_left``. Of a service ``ready``, ``desired``,
            ``backlog``, ``p95``, ``requests``. ``late`` is what waits within guaranteed quota for
            longer than a recall of it takes.
        values: the mean of each step; of ``budget_left`` what was left at its end.
        highest: the maximum within each step; () where it means nothing.
    """

    name: str
    unit: HistoryUnit
    values: tuple[float | None, ...]
    highest: tuple[float | None, ...] = ()


class HistoryAnswer(Answer):
    """Series of the same steps, at most 1,000 of them, without what is not over yet.

    Attributes:
        step_s: seconds of one step; the daemon chooses it by the span and by what it still keeps.
        times_s: Unix seconds at which each step begins.
        samples: of how many looks, one in ten seconds, each step is made; 0 of a gap.
        zone: the time zone in which the site's days and months begin.
    """

    about: str
    step_s: int
    times_s: tuple[int, ...]
    samples: tuple[int, ...]
    series: tuple[HistorySeries, ...]
    zone: str


class HistoryRequest(Request, Asks[HistoryAnswer], get="history"):
    """Asks how the cluster's slices, a tenant's quota or a service's replicas were over time.

    ``about``: ``cluster``, a tenant's name, or TENANT/SERVICE; ``cluster/`` is a tenant that has
    this name. From ``since_s`` up to ``until_s``. Everybody may ask for the cluster's sums, users
    for their own tenants and services, root and SlurmUser for all.
    """

    about: Annotated[
        str,
        Field(min_length=1, max_length=129, pattern=NO_CONTROLS),
        AfterValidator(account_name),
    ] = CLUSTER
    since_s: HistorySecond
    until_s: HistorySecond
