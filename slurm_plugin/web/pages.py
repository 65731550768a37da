"""Every page: its address, what it asks the daemon, and the template that shows the answers.

The JSON of a page, at its address with ``.json`` behind it, is made from the same answers.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cluster.rpc.message import Request
from cluster.rpc.overview_messages import OverviewRequest
from cluster.rpc.read_messages import BudgetsRequest, PriorityRequest, WhyRequest


@dataclass(frozen=True)
class PagePlace:
    """An address within a page's pattern: the words in it, and those of its query."""

    words: Mapping[str, str] = field(hash=False)
    query: Mapping[str, str] = field(hash=False)


Asks = Callable[[PagePlace], Mapping[str, Request]]


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
        is_live: whether it changes under the eyes of who looks.
    """

    pattern: str
    template: str
    title: str
    asks: Asks
    menu: str = ""
    section: str = ""
    is_live: bool = True

    def match(self, path: str) -> Mapping[str, str] | None:
        """The words in a path, percent-decoded; None if it is not this page's."""
        return match(self.pattern, path)


def match(pattern: str, path: str) -> Mapping[str, str] | None:
    """The words that ``{word}`` stands for in a path; None if the path is another one."""
    parts, wanted = path.split("/"), pattern.split("/")
    if len(parts) != len(wanted):
        return None
    words: dict[str, str] = {}
    for part, want in zip(parts, wanted, strict=True):
        if found := _WORD.fullmatch(want):
            if not part:
                return None
            words[found[1]] = part
        elif part != want:
            return None
    return words


_WORD = re.compile(r"\{(\w+)\}")


def _overview(_: PagePlace) -> Mapping[str, Request]:
    return {"overview": OverviewRequest()}


def _tenant(place: PagePlace) -> Mapping[str, Request]:
    tenant = place.words["tenant"]
    return {
        "why": WhyRequest.of(about=tenant),
        "overview": OverviewRequest(),
        "budgets": BudgetsRequest.of(tenant=tenant),
    }


def _service(place: PagePlace) -> Mapping[str, Request]:
    about = f"{place.words['tenant']}/{place.words['service']}"
    return {"why": WhyRequest.of(about=about), "overview": OverviewRequest()}


def _job(place: PagePlace) -> Mapping[str, Request]:
    job = place.words["job"]
    return {"why": WhyRequest.of(about=job), "priority": PriorityRequest.of(job=job)}


PAGES = (
    Page("/cluster", "cluster", "Cluster", _overview, "Cluster"),
    Page("/tenants", "tenants", "Tenants", _overview, "Tenants"),
    Page("/tenants/{tenant}", "tenant", "Tenant {tenant}", _tenant, section="/tenants"),
    Page("/services", "services", "Services", _overview, "Services"),
    Page(
        "/services/{tenant}/{service}",
        "service",
        "Service {tenant}/{service}",
        _service,
        section="/services",
    ),
    Page("/queue", "queue", "Queue", _overview, "Queue"),
    Page("/jobs/{job}", "job", "Job {job}", _job, section="/queue"),
)
