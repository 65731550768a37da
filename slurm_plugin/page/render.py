"""Makes HTML of answers, by the templates; whatever an answer holds is shown as text."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from jinja2 import Environment
from markupsafe import Markup, escape

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.keep_warm import warm_words
from slicewise.cluster.language.palette import STATES
from slicewise.cluster.language.printable import printable
from slicewise.cluster.language.units import counted, slices_text, slices_words
from slicewise.slurm_plugin.page.assets import Asset
from slicewise.slurm_plugin.page.kept_page import environment_of
from slicewise.slurm_plugin.page.key_forms import LIMIT_LABELS
from slicewise.slurm_plugin.rules.accounting.invoice import (
    list_per_million_tokens,
    money_places,
    money_text,
    per_million_tokens,
    priced_lines,
)
from slicewise.slurm_plugin.rules.accounting.run_csv import gres_text
from slicewise.slurm_plugin.rules.pages import (
    cluster_map,
    history,
    invoice,
    loans,
    rows,
    services,
    starts,
    statement,
    tenants,
    usage,
)
from slicewise.slurm_plugin.rules.pages.style import condition_class
from slicewise.slurm_plugin.rules.pages.words import (
    age_text,
    amount_text,
    hours_text,
    kwh_per_million_text,
    kwh_text,
    measured_text,
    shortened,
)
from slicewise.slurm_plugin.rules.quota.amounts import limit_text

_VIEWS: Sequence[Callable[..., Any]] = (
    *(cluster_map.board_map, cluster_map.layout_map, cluster_map.nodes_shown),
    *(cluster_map.share_bar, cluster_map.state_bar),
    *(invoice.amount_words, invoice.charged_words, invoice.has_others),
    *(invoice.most_spent, invoice.price_words),
    *(per_million_tokens, list_per_million_tokens),
    *(money_places, money_text, priced_lines),
    *(history.budget_chart, history.cluster_chart, history.service_charts, history.tenant_chart),
    *(loans.loan_map, loans.loans_of, loans.tenant_words),
    *(rows.entries_page, rows.named, rows.rows_page),
    *(services.service_of, services.services_shown),
    *(starts.class_words, starts.phases_shown, starts.starts_shown),
    *(statement.month_of, statement.monthly_statement, statement.months),
    *(tenants.budget_of, tenants.token_budget_of, tenants.tenant_of, limit_text),
    *(warm_words, kwh_per_million_text, measured_text),
    *(usage.key_name, usage.limited, usage.own_keys, usage.own_limits, usage.limits_of),
)
"""What templates call, each by its name."""


def environment(assets: Mapping[str, Asset]) -> Environment:
    """The environment of the pages' templates, with the filters that they use."""
    made = environment_of(_inert)
    made.filters |= {
        "as_typed": escape,
        "whole": lambda text: escape(printable(text)),
        "gres": gres_text,
        "slices": lambda millislices: f"{Decimal(slices_text(millislices)):,}",
        "slices_words": slices_words,
        "counted": counted,
        "condition": condition_class,
        "hours": hours_text,
        "amount": amount_text,
        "kwh": kwh_text,
        "age": age_text,
        "shell": shlex.quote,
        "word": lambda text: quote(str(text), safe=""),
    }
    made.globals |= {
        "static": {name: asset.path for name, asset in assets.items()},
        "slice_states": STATES,
        "limit_labels": LIMIT_LABELS,
        **{view.__name__: view for view in _VIEWS},
        "lender_name": lambda loan: loan.lender,
        "borrower_name": lambda loan: loan.borrower,
        "tenant_name": lambda tenant: tenant.name,
        "run_number": lambda run: run.run_id,
        "repartition_number": lambda repartition: repartition.repartition_id,
    }
    made.tests["refusal"] = lambda value: isinstance(value, Refusal)
    return made


def _inert(value: Any) -> Any:
    """Text of others without what a terminal or an editor would obey, and no longer than it helps;
    the rest is escaped by the templates.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return shortened(printable(value))
    return value


class TimeWords:
    """Writes times in the zone of who looks."""

    def __init__(self, zone: str, now_s: float) -> None:
        self.zone = zone
        self._zone = ZoneInfo(zone)
        self._year = datetime.fromtimestamp(now_s, self._zone).year

    def at(self, unix_s: float) -> Markup:
        """``<time datetime="2026-11-27T03:10:00+00:00">27 Nov 03:10:00</time>``; with the year
        where it is another one than now.
        """
        moment = datetime.fromtimestamp(unix_s, UTC).astimezone(self._zone)
        exact = moment.isoformat(timespec="seconds")
        year = "" if moment.year == self._year else f" {moment.year}"
        return Markup('<time datetime="{}">{}</time>').format(
            exact, f"{moment.day} {moment:%b}{year} {moment:%H:%M:%S}"
        )
