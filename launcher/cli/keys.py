"""Commands of ``slicewise key``: API keys, with which the gateway lets requests in."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.language.persons import GUEST_PREFIX
from slicewise.cluster.rpc.client import UNSURE, DaemonClient
from slicewise.cluster.rpc.key_messages import (
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRequireRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyView,
)
from slicewise.cluster.rpc.new_key import KEY_PREFIX, new_key
from slicewise.cluster.rpc.own_tenant import complete_tenant, own_tenant, typed_account
from slicewise.cluster.rpc.read_messages import GenerationsRequest
from slicewise.cluster.rpc.web_messages import GuestEndRequest
from slicewise.cluster.runtime.console import (
    TO_THE_MINUTE,
    Column,
    FittingTable,
    column,
    console,
    print_json,
    time_text,
)
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.runtime.questions import confirm
from slicewise.cluster.runtime.time_options import local_time
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.cli.key_limits import limit_app

key_app = typer.Typer(
    no_args_is_help=True,
    help="API keys: which clients may send requests to a tenant's services.",
    epilog="Examples: slicewise key create vision --name ci | slicewise key list"
    " | slicewise key limit vision --requests-per-minute 600",
)

key_app.add_typer(limit_app)

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

OwnTenant = Annotated[
    str | None,
    typer.Argument(
        help="A tenant of yours; if left out, the only one that you have.",
        show_default=False,
        autocompletion=complete_tenant,
        callback=typed_account,
    ),
]


@dataclass(frozen=True)
class CreatedKey:
    """An API key; ``key`` is shown only once. ``service`` is "" if it opens all of the tenant's."""

    key_id: str
    tenant: str
    service: str
    name: str
    expires_s: int | None
    key: str
    person: str


Person = Annotated[
    str,
    typer.Option(
        metavar="USER",
        help="The member of the tenant whose key it is; yours if left out. For operators.",
        show_default=False,
    ),
]

_AT_THE_GATEWAY = "within 5 s"


@key_app.command(
    "create",
    epilog="Examples: slicewise key create --name ci"
    " | slicewise key create vision/bert --name partner --expires 90d"
    " | slicewise key create vision --name ci --yes --json",
)
def create_key(
    opens: Annotated[
        str | None,
        typer.Argument(
            metavar="[TENANT[/SERVICE]]",
            help="A tenant of yours, or one of its services: the key then opens no other. If left "
            "out, the only tenant that you have.",
            show_default=False,
            autocompletion=complete_tenant,
            callback=typed_account,
        ),
    ] = None,
    *,
    name: Annotated[
        str, typer.Option(help="Name of the key: letters, digits and _ . -", show_default=False)
    ],
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long the key works, such as 90d or 12h, or until when, such as 2026-12-31; "
            "for ever if left out.",
            show_default=False,
        ),
    ] = None,
    person: Person = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a key for a tenant's services, and print it: it is shown only now and stored nowhere.

    Clients send it as "Authorization: Bearer KEY" or "x-api-key: KEY". As soon as a
    tenant has a key, also one for a single service, all of its services refuse requests without
    one, unless "slicewise key require" has set a date for that: the first key asks before it does
    that. A key is its person's; it lets nothing in once that person has left the tenant's account.
    """
    named, service = _parts(opens)
    expires_s = None if expires is None else _expiry_s(expires)
    tenant = own_tenant(named)
    made = new_key()
    request = KeyCreateRequest.of(
        tenant=tenant,
        service=service,
        name=name,
        key_id=made.key_id,
        sha256=made.sha256,
        expires_s=expires_s,
        person=person,
    )
    settings = load_settings()
    daemon = _daemon(settings)
    if not yes and not settings.gateway.require_keys:
        _ask_if_first(daemon, tenant, as_json=as_json)
    person = _make(daemon, request)
    if service and "/" not in service and not as_json:
        _note_of_unknown_service(daemon, tenant, service)
    if as_json:
        key_id, key = made.key_id, made.key
        print_json(CreatedKey(key_id, tenant, service, name, expires_s, key, person))
        return
    _show_made(request, made.key)


def _show_made(request: KeyCreateRequest, key: str) -> None:
    out = console()
    out.print(Text(key), soft_wrap=True)
    where = f"{request.tenant}/{request.service}" if request.service else request.tenant
    until = "" if request.expires_s is None else f" until {_day(request.expires_s)}"
    out.print(
        Text(
            f"Key {request.key_id} of {where} works at the gateway {_AT_THE_GATEWAY}{until}."
            " Services of a tenant that has keys refuse requests without one, unless a later date"
            " was set for that (slicewise key require). Keep it: it is not shown again.",
            style="dim",
        )
    )


def _parts(opens: str | None) -> tuple[str | None, str]:
    """Return the tenant, None if none was given, and the service, "" for all of its services.

    Raises typer.BadParameter for an empty part: an unset variable of a script would otherwise
    make a key for all services, or for those of another tenant.
    """
    if opens is None:
        return None, ""
    tenant, slash, service = opens.partition("/")
    if not tenant or (slash and not service):
        raise typer.BadParameter(f"{opens!r}: write TENANT or TENANT/SERVICE; neither is empty.")
    return tenant, service


def _ask_if_first(daemon: DaemonClient, tenant: str, *, as_json: bool) -> None:
    """Ask before the first key of a tenant; raises what ``confirm`` raises."""
    answer = daemon.call(KeyListRequest())
    if tenant in answer.unprotected and tenant not in answer.wanted_from_s:
        confirm(
            f"This is {tenant}'s first key: all of its services then refuse requests without a key,"
            " also those that clients use now. Make it?",
            yes=False,
            as_json=as_json,
        )


def _make(daemon: DaemonClient, request: KeyCreateRequest) -> str:
    """Have the daemon make the key, return whose it is; raises what ``DaemonClient.call`` does."""
    try:
        return daemon.call(request).person
    except UnreachableError as error:
        if error.refusal.code != UNSURE:
            raise
        raise UnreachableError(
            UNSURE,
            f"{error.refusal.message} Key {request.key_id} may have been made; it is not shown.",
            f"If slicewise key list shows it: slicewise key delete {request.key_id}. Then try"
            " again.",
        ) from error


def _expiry_s(text: str) -> int:
    """Parse the end of a key as Unix seconds; raises typer.BadParameter if it is over."""
    expires_s = int(local_time(text, ahead=True).timestamp())
    if expires_s <= wall_s():
        raise typer.BadParameter(f"--expires {text!r}: the key would have expired already.")
    return expires_s


def _note_of_unknown_service(daemon: DaemonClient, tenant: str, service: str) -> None:
    """Say on stderr if the tenant never had that service: it may be a mistake in typing."""
    with suppress(SlicewiseError):
        request = GenerationsRequest.of(name=service, tenant=tenant)
        if not daemon.call(request).generations:
            typer.echo(
                f"{tenant} has no service {service!r} yet: the key opens it once it is applied.",
                err=True,
            )


@key_app.command("list", epilog="Examples: slicewise key list | slicewise key list --json")
def list_keys(
    all_keys: Annotated[
        bool, typer.Option("--all", help="Show revoked and expired keys, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show your keys, without their secrets; operators see all, coordinators their accounts'.

    The last use is known to within two minutes; a key that was never used shows none. A key whose
    person is in the tenant's account no more ("has left") lets nothing in.
    """
    now_s = wall_s()
    answer = _daemon(load_settings()).call(KeyListRequest())
    keys = [key for key in answer.keys if all_keys or key.is_valid(now_s)]
    if as_json:
        print_json(keys)
    else:
        console().print(
            FittingTable(_columns(keys) if all_keys else _columns(keys)[:-1]).or_say(
                "No keys. Make one: slicewise key create TENANT --name NAME"
            )
        )
        for tenant, from_s in answer.wanted_from_s.items():
            console().print(Text(f"{tenant}'s services want a key from {_day(from_s)} on."))


@key_app.command(
    "delete",
    epilog="Examples: slicewise key delete 3f9a1c0d77e2 | slicewise key delete 3f9a1c0d77e2 --yes",
)
def delete_key(
    key_id: Annotated[
        str,
        typer.Argument(help="The key's id, as slicewise key list shows it.", show_default=False),
    ],
    yes: Yes = False,
) -> None:
    """Refuse requests with this key from now on; requests in flight finish.

    Without any key left, a tenant's services refuse all requests, until another key is made, or
    "slicewise key open TENANT" lets everyone in.
    """
    key_id = _id_of(key_id)
    daemon = _daemon(load_settings())
    if not yes and (tenant := _tenant_of_last(key_id, daemon.call(KeyListRequest()))):
        confirm(
            f"This is {tenant}'s last key: its services then refuse all requests, until another "
            f"key is made, or: slicewise key open {tenant}. Delete it?",
            yes=False,
        )
    daemon.call(KeyRevokeRequest.of(key_id=key_id))
    console().print(Text(f"Key {key_id} stops working at the gateway {_AT_THE_GATEWAY}."))


def _tenant_of_last(key_id: str, keys_answer: KeysAnswer) -> str:
    """Return the tenant that would have no key left; "" if there is none."""
    now_s = wall_s()
    valid = [key for key in keys_answer.keys if key.is_valid(now_s)]
    tenant = next((key.tenant for key in valid if key.key_id == key_id), "")
    own = sum(key.tenant == tenant for key in valid)
    return tenant if max(own, keys_answer.valid.get(tenant, 0)) == 1 else ""


@key_app.command(
    "open", epilog="Examples: slicewise key open vision | slicewise key open vision --yes"
)
def open_tenant(
    tenant: OwnTenant = None,
    yes: Yes = False,
) -> None:
    """Let in requests without a key again, once all of a tenant's keys are revoked.

    This holds until another key is made. A site that requires keys of everyone
    (gateway.require_keys) still requires them.
    """
    tenant = own_tenant(tenant)
    confirm(
        f"Everyone who reaches the gateway can then use {tenant}'s services. Continue?", yes=yes
    )
    _daemon(load_settings()).call(KeyOpenRequest.of(tenant=tenant))
    console().print(Text(f"{tenant}'s services need no key any more, {_AT_THE_GATEWAY}."))


@key_app.command(
    "require",
    epilog="Examples: slicewise key require vision --from 2026-12-31"
    " | slicewise key require vision --from 30d",
)
def require_keys(
    tenant: OwnTenant = None,
    *,
    from_when: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="When keys are wanted: a day such as 2026-12-31, or a span from now such as 30d.",
            show_default=False,
        ),
    ],
    yes: Yes = False,
) -> None:
    """Let a tenant's services want keys from that moment on, and none before.

    So clients can get keys before requests without one are refused. The moment may be made
    earlier; later only by operators.
    """
    from_s = int(local_time(from_when, ahead=True).timestamp())
    tenant = own_tenant(tenant)
    if from_s <= wall_s():
        confirm(
            f"All of {tenant}'s services then refuse requests without a key. Continue?", yes=yes
        )
    _daemon(load_settings()).call(KeyRequireRequest.of(tenant=tenant, from_s=from_s))
    console().print(Text(f"{tenant}'s services want a key from {_day(from_s)} on."))


@key_app.command(
    "dismiss",
    epilog="Examples: slicewise key dismiss vision/oidc+anna"
    " | slicewise key dismiss vision/oidc+anna --undo",
)
def dismiss_guest(
    guest: Annotated[
        str,
        typer.Argument(
            metavar="TENANT/GUEST",
            help="The tenant, and the guest's name, as slicewise key list shows it.",
            show_default=False,
        ),
    ],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the guest's next login count again.")
    ] = False,
) -> None:
    """End a guest's membership of a tenant: the guest's keys of it let nothing in. For operators.

    Guests have no account of Slurm's; the identity provider names their tenants
    (web.oidc.tenant_claim). What it names later does not count, until you undo this.
    """
    tenant, _, person = guest.partition("/")
    if not person.startswith(GUEST_PREFIX):
        raise typer.BadParameter(f"{guest!r}: write TENANT/{GUEST_PREFIX}NAME.")
    request = GuestEndRequest.of(person=person, tenant=tenant, again=undo)
    _daemon(load_settings()).call(request)
    end = "may log in again" if undo else f"is no guest of {tenant} any more, {_AT_THE_GATEWAY}"
    console().print(Text(f"{person} {end}."))


def _id_of(given: str) -> str:
    """Return the key's id; the whole key is accepted, too, and its secret goes nowhere."""
    return given.split("_")[1] if given.startswith(f"{KEY_PREFIX}_") else given


def _daemon(settings: Settings) -> DaemonClient:
    return DaemonClient(settings.daemon)


def _columns(keys: Sequence[KeyView]) -> tuple[Column, ...]:
    return (
        column("key", (key.key_id for key in keys)),
        column("tenant", (key.tenant for key in keys)),
        column("service", (key.service or "all" for key in keys)),
        column("name", (key.name for key in keys)),
        column("person", (_person(key) for key in keys), rank=4),
        column("made by", (key.created_by for key in keys), rank=6),
        column("made", (_day(key.created_s) for key in keys), rank=5),
        column("last use", (_day(key.used_s) for key in keys), rank=2),
        column("expires", (_day(key.expires_s) for key in keys), rank=3),
        column("revoked", (_day(key.revoked_s) for key in keys), rank=1),
    )


def _person(key: KeyView) -> str:
    person = key.person or key.created_by
    state = "has left" if key.has_left else "blocked" if key.is_blocked else ""
    return f"{person} ({state})" if state else person


def _day(at_s: float | None) -> str:
    return "–" if at_s is None else time_text(at_s, TO_THE_MINUTE)
