"""Every page: its address, what it asks the daemon, and the template that shows the answers.

The JSON of a page, at its address with ``.json`` behind it, is made from the same answers.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import urlencode

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.rpc.history_messages import CLUSTER, HistoryRequest
from slicewise.cluster.rpc.journal_messages import RebalancesRequest, RepartitionsRequest
from slicewise.cluster.rpc.key_messages import KeyListRequest
from slicewise.cluster.rpc.limit_messages import LimitsRequest
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.overview_messages import OverviewRequest, QueueRequest
from slicewise.cluster.rpc.read_messages import (
    GenerationsRequest,
    PoolModelsRequest,
    PriorityRequest,
    ServiceStartsRequest,
    WhyRequest,
)
from slicewise.cluster.rpc.web_messages import WhoamiRequest
from slicewise.slurm_plugin.common.energy_requests import EnergyRequest
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanRequest
from slicewise.slurm_plugin.common.ledger_requests import (
    SharesRequest,
    StatementRequest,
    TenantsRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import ChargesRequest
from slicewise.slurm_plugin.common.usage_requests import TokenUsageRequest, UsageGroup
from slicewise.slurm_plugin.page.key_forms import KeyForm, key_change
from slicewise.slurm_plugin.rules.pages.history import RANGES, history_span
from slicewise.slurm_plugin.rules.pages.rows import whole_number
from slicewise.slurm_plugin.rules.pages.services import SORTS, STATES
from slicewise.slurm_plugin.rules.pages.statement import month_of
from slicewise.slurm_plugin.rules.pages.usage import WHOSE


@dataclass(frozen=True)
class PagePlace:
    """An address within a page's pattern.

    Attributes:
        path: as the browser wrote it, without ``.json``.
        words: those in the path, decoded.
        query: the words of its query.
        now_s: Unix seconds at which it was asked for.
        site_zone: the time zone in which the ledger's months begin.
        user: who looks.
    """

    path: str
    words: Mapping[str, str] = field(hash=False)
    query: Mapping[str, str] = field(hash=False)
    now_s: float
    site_zone: str
    user: str = ""

    def chosen(self, name: str) -> str:
        """What was chosen by a word of the query; "" without a choice."""
        return self.query.get(name, "")

    def link(self, **words: str) -> str:
        """The same page with other words in its query; without ``page`` it is its first page."""
        asked = {name: value for name, value in self.query.items() if name not in _PLACES} | words
        written = urlencode({name: value for name, value in asked.items() if value})
        return f"{self.path}?{written}" if written else self.path


_PLACES = ("page", "after", "before")
"""Words of a query that say where a page of a long list begins."""

Asks = Callable[[PagePlace], Mapping[str, Request]]


@dataclass(frozen=True)
class Filter:
    """What a viewer may choose of a page by a word of its query.

    Attributes:
        name: of the word.
        label: what the viewer reads.
        options: values with their words, the first holds without a choice; () stands for any text.
        below: the id of the heading on the page below which it stands; "" is above all.
    """

    name: str
    label: str
    options: tuple[tuple[str, str], ...] = ()
    below: str = ""


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        pattern: its address, with ``{word}`` for a part that differs.
        template: its file in templates/web, without the suffix.
        title: heading; ``{word}`` is filled in.
        asks: the questions by the names that the template uses. Without an answer to the first one
            there is no page; a refusal of another one is shown in its place.
        menu: its word in the menu; "" if it is not in it.
        section: the page whose word in the menu stands out.
        filters: what a viewer may choose of it.
        is_live: whether it changes under the eyes of who looks.
        is_for_operators: whether the daemon answers only operators what it asks.
        form_asks: the questions that its form asks, by the form's fields; a refusal is shown in the
            answer's place. None if it has no such form.
        change: what its form changes, of the viewer's own; only what the daemon lets the page
            change. None if nothing is changed by it.
        csv_asks: the question whose lines are its CSV. None if it has none.
    """

    pattern: str
    template: str
    title: str
    asks: Asks
    menu: str = ""
    section: str = ""
    filters: tuple[Filter, ...] = ()
    is_live: bool = True
    is_for_operators: bool = False
    form_asks: Callable[[Mapping[str, str]], Mapping[str, Request]] | None = None
    change: Callable[[KeyForm], Request] | None = None
    csv_asks: Callable[[PagePlace], Request] | None = None

    def match(self, path: str) -> Mapping[str, str] | None:
        """The words in a path, as they are in it; None if it is not this page's."""
        found = re.fullmatch(_WORD.sub(r"(?P<\1>[^/]+)", self.pattern), path)
        return None if found is None else found.groupdict()

    def filters_below(self, heading: str) -> tuple[Filter, ...]:
        """Those that stand below the heading with this id; "" are those above all."""
        return tuple(shown_filter for shown_filter in self.filters if shown_filter.below == heading)


_WORD = re.compile(r"\{(\w+)\}")


def _cluster(place: PagePlace) -> Mapping[str, Request]:
    return {"overview": OverviewRequest(), "history": _history(place, CLUSTER)}


def _charges(place: PagePlace, tenant: str | None, chosen: str = "") -> Mapping[str, Request]:
    """What a month cost, and its joules: of a tenant by service, of all by tenant."""
    month = month_of(chosen, place.now_s, place.site_zone)
    span = {"tenant": tenant, "since_s": month.start_s, "until_s": month.end_s}
    by = "service" if tenant else "tenant"
    return {"charges": ChargesRequest.of(**span), "energy": EnergyRequest.of(by=by, **span)}


def _invoice(place: PagePlace) -> Mapping[str, Request]:
    return _charges(place, _chosen_tenant(place), place.chosen("month"))


def _invoice_lines(place: PagePlace) -> Request:
    return _invoice(place)["charges"]


def _chosen_tenant(place: PagePlace) -> str | None:
    return account_name(place.chosen("tenant").strip()) or None


def _tenants(_: PagePlace) -> Mapping[str, Request]:
    return {"tree": TenantsRequest()}


def _tenant(place: PagePlace) -> Mapping[str, Request]:
    tenant = place.words["tenant"]
    about = f"{CLUSTER}/" if tenant == CLUSTER else tenant
    return {
        "why": WhyRequest.of(about=tenant),
        "tree": TenantsRequest(),
        "overview": OverviewRequest(),
        "history": _history(place, about),
        # A budget's period is longer than what the viewer may have chosen.
        "past_month": _history(place, about, "month"),
        **_charges(place, tenant),
    }


def _services(_: PagePlace) -> Mapping[str, Request]:
    return {"overview": OverviewRequest()}


def _service(place: PagePlace) -> Mapping[str, Request]:
    tenant, service = place.words["tenant"], place.words["service"]
    about = f"{tenant}/{service}"
    return {
        "why": WhyRequest.of(about=about),
        "overview": OverviewRequest(),
        "history": _history(place, about),
        "generations": GenerationsRequest.of(name=service, tenant=tenant),
        "starts": ServiceStartsRequest.of(name=service, tenant=tenant),
        "pool": PoolModelsRequest.of(name=service, tenant=tenant),
    }


def _history(place: PagePlace, about: str, chosen: str = "") -> Request:
    since_s, until_s = history_span(chosen or place.chosen("range"), place.now_s)
    return HistoryRequest.of(about=about, since_s=since_s, until_s=until_s)


def _queue(place: PagePlace) -> Mapping[str, Request]:
    return {"queue": QueueRequest.of(after=whole_number(place.chosen("after")) or 0)}


def _job(place: PagePlace) -> Mapping[str, Request]:
    job = place.words["job"]
    return {"why": WhyRequest.of(about=job), "priority": PriorityRequest.of(job=job)}


def _rebalances(place: PagePlace) -> Mapping[str, Request]:
    return {"journal": RebalancesRequest.of(before=whole_number(place.chosen("before")))}


def _repartitions(place: PagePlace) -> Mapping[str, Request]:
    return {"journal": RepartitionsRequest.of(before=whole_number(place.chosen("before")))}


def _statement(place: PagePlace) -> Mapping[str, Request]:
    runs = _runs(place)
    shares = SharesRequest.of(tenant=runs.tenant, since_s=runs.since_s, until_s=runs.until_s)
    return {"statement": runs, "shares": shares}


def _runs(place: PagePlace) -> StatementRequest:
    month = month_of(place.chosen("month"), place.now_s, place.site_zone)
    tenant = _chosen_tenant(place)
    return StatementRequest.of(tenant=tenant, since_s=month.start_s, until_s=month.end_s)


def _usage(place: PagePlace) -> Mapping[str, Request]:
    sums = {f"by_{about}": _tokens(place, about) for about in ("service", "day", "key")}
    return {"keys": KeyListRequest(), "limits": LimitsRequest(), **sums}


def _usage_lines(place: PagePlace) -> Request:
    chosen = place.chosen("by")
    return _tokens(place, next((by for by in get_args(UsageGroup) if by == chosen), "day"))


def _tokens(place: PagePlace, by: UsageGroup) -> Request:
    month = month_of(place.chosen("month"), place.now_s, place.site_zone)
    person = None if place.chosen("whose") == "all" else place.user
    return TokenUsageRequest.of(by=by, person=person, since_s=month.start_s, until_s=month.end_s)


def _who(_: PagePlace) -> Mapping[str, Request]:
    return {"who": WhoamiRequest()}


def _plan(fields: Mapping[str, str]) -> Mapping[str, Request]:
    return {"plan": QuotaPlanRequest.of(text=fields.get("text", ""))}


GUESTS_PAGE = "/usage"
"""All that a guest sees."""
_RANGE = Filter("range", "Of", RANGES, below="history")

PAGES = (
    Page(
        *("/cluster", "cluster", "Cluster", _cluster, "Cluster"),
        filters=(_RANGE, Filter("node", "Nodes whose names have", below="gpus")),
    ),
    Page(
        *("/tenants", "tenants", "Tenants", _tenants, "Tenants"),
        filters=(Filter("name", "Tenants whose names have"),),
    ),
    Page(
        *("/tenants/{tenant}", "tenant", "Tenant {tenant}", _tenant),
        section="/tenants",
        filters=(_RANGE,),
    ),
    Page(
        *("/services", "services", "Services", _services, "Services"),
        filters=(
            Filter("state", "State", STATES),
            Filter("sort", "Sorted by", SORTS),
            Filter("name", "Services whose names or users have"),
        ),
    ),
    Page(
        *("/services/{tenant}/{service}", "service", "Service {tenant}/{service}", _service),
        section="/services",
        filters=(_RANGE,),
    ),
    Page("/queue", "queue", "Queue", _queue, "Queue"),
    Page("/jobs/{job}", "job", "Job {job}", _job, section="/queue"),
    Page(
        *("/rebalances", "rebalances", "Rebalancing", _rebalances, "Rebalancing"),
        is_for_operators=True,
    ),
    Page(
        *("/repartitions", "repartitions", "Repartitions", _repartitions, "Repartitions"),
        is_for_operators=True,
    ),
    Page(
        *("/statement", "statement", "Statement", _statement, "Statement"),
        filters=(Filter("tenant", "Tenant"),),
        is_live=False,
        csv_asks=_runs,
    ),
    Page(
        *("/invoice", "invoice", "Invoice", _invoice, "Invoice"),
        filters=(Filter("tenant", "Tenant"),),
        is_live=False,
        csv_asks=_invoice_lines,
    ),
    Page(
        *(GUESTS_PAGE, "usage", "Keys and usage", _usage, "Usage"),
        filters=(Filter("whose", "Requests", WHOSE, below="used"),),
        is_live=False,
        change=key_change,
        csv_asks=_usage_lines,
    ),
    Page(
        *("/what-if", "what_if", "What if", _who, "What if"),
        is_live=False,
        is_for_operators=True,
        form_asks=_plan,
    ),
)
