"""The tenants that the caller may see, by the daemon: for the shell's completion and as a default.

Ordinary users see their own tenants, operators see all.
"""

from unicodedata import category

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError


def complete_tenant(incomplete: str) -> list[str]:
    """Return tenants for the shell's completion; none if the daemon does not answer."""
    try:
        return [name for name in _tenants() if name.startswith(account_name(incomplete))]
    except SlicewiseError:
        return []


def typed_account(written: str | None) -> str | None:
    """Return an argument of a command that names an account, a tenant, or a tenant's service, in
    Slurm's form: the callback of all such arguments.

    Raises InvalidInputError (SW-VALUE) for bytes that are no text, and for control characters.
    """
    if written is None:
        return None
    if any(category(sign) in {"Cc", "Cs"} for sign in written):
        raise InvalidInputError(
            Code.VALUE, f"{written!r} is no account's name.", "Write it as sacctmgr shows it."
        )
    return account_name(written)


def own_tenant(named: str | None) -> str:
    """Return the tenant that was named, or else the only one that the caller may see.

    Raises InvalidInputError (SW-USAGE) if none was named and there is none, or several.
    """
    if named is not None:
        return named
    names = _tenants()
    if len(names) != 1:
        raise InvalidInputError(
            Code.USAGE,
            "No tenant was named, and you have " + ("several." if names else "none."),
            f"Name one of: {', '.join(names)}." if names else "Ask the operator for a quota.",
        )
    return names[0]


def _tenants() -> list[str]:
    # Imported here: most commands that take a tenant are given one, and do not ask the daemon.
    from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415
    from slicewise.cluster.rpc.messages import ViewRequest  # noqa: PLC0415
    from slicewise.cluster.settings.read import load_settings  # noqa: PLC0415

    view = DaemonClient(load_settings().daemon).call(ViewRequest())
    return sorted(tenant.name for tenant in view.tenants)
