"""``slicewise key limit`` and ``key limits``: how much tenants, persons and keys may ask for."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.limit_messages import (
    LimitChangeRequest,
    LimitsRequest,
    SubjectLimits,
)
from slicewise.cluster.runtime.console import FittingTable, column, console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings

limit_app = typer.Typer()


class Lifted(StrEnum):
    """A limit by the name that its option has."""

    CONCURRENT = "concurrent"
    REQUESTS_PER_MINUTE = "requests-per-minute"
    TOKENS_PER_MINUTE = "tokens-per-minute"
    TOKENS_PER_MONTH = "tokens-per-month"
    MODELS = "models"


Subject = Annotated[
    str,
    typer.Argument(
        metavar="[TENANT[/PERSON]]",
        help="Whose requests are limited: a tenant's, or a person's in it. For operators and"
        " coordinators.",
        show_default=False,
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OWNER/NAME",
        help="A service that may be asked, and no others; may be repeated.",
        show_default=False,
    ),
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--open",
        help="Refuse requests, or let them in, while no tokens can be set aside for them.",
        show_default=False,
    ),
]
Most = int | None


def _option(help_text: str) -> Any:
    return typer.Option(min=0, metavar="NUMBER", help=help_text, show_default=False)


@limit_app.command(
    "limit",
    epilog="Examples: slicewise key limit vision --concurrent 50 --tokens-per-month 200000000"
    " | slicewise key limit vision/anna --requests-per-minute 60"
    " | slicewise key limit --key 3f9a1c0d77e2 --model vision/chat --lift concurrent",
)
def limit_requests(
    subject: Subject = "",
    *,
    key: Annotated[
        str,
        typer.Option(metavar="KEY_ID", help="A key that is limited by itself.", show_default=False),
    ] = "",
    concurrent: Annotated[Most, _option("Requests in flight and waiting.")] = None,
    requests_per_minute: Annotated[Most, _option("Requests let in a minute.")] = None,
    tokens_per_minute: Annotated[Most, _option("Prompt and output tokens a minute.")] = None,
    tokens_per_month: Annotated[Most, _option("Prompt and output tokens a month.")] = None,
    model: Models = None,
    exact: Exact = None,
    lift: Annotated[
        list[Lifted] | None,
        typer.Option(
            metavar="LIMIT",
            help="A limit that is no more: concurrent, requests-per-minute, tokens-per-minute,"
            " tokens-per-month or models; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Limit the requests of a tenant, of a person in it, or of one key; what is not named stays.

    All limits of a request's tenant, person and key hold together; 0 lets none in. Tokens are
    taken as a request comes, and settled at its end. You may limit your own keys, coordinators of
    an account in Slurm all in it and below it, operators everyone; nobody loosens what a higher
    one has set.
    """
    if bool(subject) == bool(key):
        raise typer.BadParameter("Name a tenant, TENANT/PERSON, or --key KEY_ID: one of them.")
    tenant, _, person = subject.partition("/")
    request = LimitChangeRequest.of(
        tenant=tenant or None,
        person=person,
        key_id=key,
        limits={
            "concurrent": concurrent,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
            "tokens_per_month": tokens_per_month,
            "models": tuple(model) if model else None,
        },
        is_exact=exact,
        lifted=[name.replace("-", "_") for name in lift or ()],
    )
    DaemonClient(load_settings().daemon).call(request)
    console().print(Text(f"Limits of {subject or key} hold at the gateway within 5 s."))


@limit_app.command("limits", epilog="Examples: slicewise key limits | slicewise key limits --json")
def list_limits(as_json: Json = False) -> None:
    """Show the limits of your tenants, of yourself and of your keys; operators see all,
    coordinators those of their accounts.
    """
    limits = DaemonClient(load_settings().daemon).call(LimitsRequest()).limits
    if as_json:
        print_json(limits)
        return
    shown = [(subject, subject.limits) for subject in limits]
    columns = (
        column("tenant", (subject.tenant for subject, _ in shown)),
        column("person", (subject.person or "–" for subject, _ in shown)),
        column("key", (subject.key_id or "–" for subject, _ in shown)),
        column("concurrent", (_number(held.concurrent) for _, held in shown)),
        column("requests/min", (_number(held.requests_per_minute) for _, held in shown)),
        column("tokens/min", (_number(held.tokens_per_minute) for _, held in shown), rank=2),
        column("tokens/month", (_number(held.tokens_per_month) for _, held in shown), rank=1),
        column("models", (", ".join(held.models or ()) or "all" for _, held in shown), rank=3),
        column("without tokens", (_without(subject) for subject, _ in shown), rank=4),
    )
    console().print(FittingTable(columns).or_say("No limits. Set one: slicewise key limit"))


def _number(limit: int | None) -> str:
    return "–" if limit is None else f"{limit:,}"


def _without(subject: SubjectLimits) -> str:
    held = subject.limits
    if held.tokens_per_minute is None and held.tokens_per_month is None:
        return "–"
    return "refused" if held.is_exact else "let in"
