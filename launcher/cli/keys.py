"""Commands of ``slicewise key``: API keys, with which the gateway lets requests in."""

import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from cluster.rpc.client import DaemonClient
from cluster.rpc.key_messages import (
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyView,
)
from cluster.runtime.console import Column, FittingTable, column, console, print_json
from cluster.settings.file import load_settings

key_app = typer.Typer(
    help="API keys: which clients may send requests to a tenant's services.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

_PREFIX = "swk"
_KEY_ID_BYTES, _SECRET_BYTES = 6, 32
_AT_THE_GATEWAY = "within 5 s"


@key_app.command(
    "create",
    epilog="Examples: slicewise key create vision --name ci"
    " | slicewise key create vision --name ci --json",
)
def create_key(
    tenant: Annotated[str, typer.Argument(help="A tenant of yours.", show_default=False)],
    name: Annotated[
        str, typer.Option(help="Name of the key: letters, digits and _ . -", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Make a key for a tenant's services, and print it: it is shown only now and stored nowhere.

    Clients send it as "Authorization: Bearer KEY" or "x-api-key: KEY". As soon as a
    tenant has a key, its services refuse requests without one.
    """
    key_id, key = new_key()
    digest = hashlib.sha256(key.encode()).hexdigest()
    request = KeyCreateRequest.of(tenant=tenant, name=name, key_id=key_id, sha256=digest)
    _daemon().call(request)
    if as_json:
        print_json({"key_id": key_id, "tenant": tenant, "name": name, "key": key})
        return
    out = console()
    out.print(Text(key), soft_wrap=True)
    out.print(
        Text(
            f"Key {key_id} of {tenant} works at the gateway {_AT_THE_GATEWAY}; from then on "
            f"{tenant}'s services refuse requests without a key. Keep it: it is not shown again.",
            style="dim",
        )
    )


@key_app.command("list", epilog="Examples: slicewise key list | slicewise key list --json")
def list_keys(
    all_keys: Annotated[bool, typer.Option("--all", help="Show revoked keys, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show the keys of your tenants, without their secrets."""
    answer = _daemon().call(KeyListRequest())
    keys = [one for one in answer.keys if all_keys or one.revoked_s is None]
    if as_json:
        print_json([one.model_dump() for one in keys])
    elif keys:
        console().print(FittingTable(_columns(keys) if all_keys else _columns(keys)[:-1]))
    else:
        console().print(Text("No keys. Make one: slicewise key create TENANT --name NAME"))


@key_app.command(
    "revoke",
    epilog="Examples: slicewise key revoke 3f9a1c0d77e2 | slicewise key revoke 3f9a1c0d77e2 --yes",
)
def revoke_key(
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
    if not yes and (tenant := _tenant_of_last(key_id, _daemon().call(KeyListRequest()))):
        typer.confirm(
            f"This is {tenant}'s last key: its services then refuse all requests, until another "
            f"key is made, or: slicewise key open {tenant}. Revoke it?",
            abort=True,
            err=True,
        )
    _daemon().call(KeyRevokeRequest.of(key_id=key_id))
    console().print(Text(f"Key {key_id} stops working at the gateway {_AT_THE_GATEWAY}."))


def _tenant_of_last(key_id: str, known: KeysAnswer) -> str:
    """Return the tenant that would have no key left; "" if there is none."""
    valid = [one for one in known.keys if one.revoked_s is None]
    tenant = next((one.tenant for one in valid if one.key_id == key_id), "")
    return tenant if sum(one.tenant == tenant for one in valid) == 1 else ""


@key_app.command(
    "open", epilog="Examples: slicewise key open vision | slicewise key open vision --yes"
)
def open_tenant(
    tenant: Annotated[str, typer.Argument(help="A tenant of yours.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Let in requests without a key again, once all of a tenant's keys are revoked.

    This holds until another key is made. A site that requires keys of everyone
    (gateway.require_keys) still requires them.
    """
    if not yes:
        typer.confirm(
            f"Everyone who reaches the gateway can then use {tenant}'s services. Continue?",
            abort=True,
            err=True,
        )
    _daemon().call(KeyOpenRequest.of(tenant=tenant))
    console().print(Text(f"{tenant}'s services need no key any more, {_AT_THE_GATEWAY}."))


def new_key() -> tuple[str, str]:
    """Make a key; return its id, which is public and part of the key, and the key."""
    key_id = secrets.token_hex(_KEY_ID_BYTES)
    return key_id, f"{_PREFIX}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def _id_of(given: str) -> str:
    """Return the key's id; the whole key is accepted, too, and its secret goes nowhere."""
    return given.split("_")[1] if given.startswith(f"{_PREFIX}_") else given


def _daemon() -> DaemonClient:
    return DaemonClient(load_settings().daemon)


def _columns(keys: Sequence[KeyView]) -> tuple[Column, ...]:
    return (
        column("key", (one.key_id for one in keys)),
        column("tenant", (one.tenant for one in keys)),
        column("name", (one.name for one in keys)),
        column("made by", (one.created_by for one in keys), rank=2),
        column("made", (_day(one.created_s) for one in keys), rank=3),
        column("revoked", (_day(one.revoked_s) for one in keys), rank=1),
    )


def _day(at_s: float | None) -> str:
    return "–" if at_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
