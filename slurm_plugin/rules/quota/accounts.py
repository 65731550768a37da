"""Compares Slurm's account tree with the tree of tenants, and takes over what differs."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal
from slicewise.slurm_plugin.rules.common.known_names import names_text
from slicewise.slurm_plugin.rules.quota.tenants import changed
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, Policy, Tenant, TenantUpdate

Accounts = Mapping[str, str]
"""The parent of each of Slurm's accounts, by name; accounts at the top have root as parent."""


@dataclass(frozen=True)
class AccountDifference:
    """An account that stands in different places in the ledger and in Slurm.

    Attributes:
        kind: ``new`` if only Slurm has the account, ``moved`` if it is below another tenant in
            Slurm, ``absent`` if Slurm does not have it.
        parent: the tenant above it in the ledger; "" at the top.
        slurm_parent: the nearest account above it in Slurm that is a tenant; "" at the top.
    """

    account: str
    kind: Literal["new", "moved", "absent"]
    parent: str = ""
    slurm_parent: str = ""


@dataclass(frozen=True)
class TakeOver:
    """A difference to take over into the ledger, or the refusal that prevents it."""

    difference: AccountDifference
    refusal: Refusal | None = None


def tenant_parent(account: str, accounts: Accounts, tenants: Container[str]) -> str:
    """Return the nearest account above that is a tenant; "" if there is none."""
    above = accounts.get(account, "")
    while above and above not in tenants:
        above = accounts.get(above, "")
    return above


def place_in_slurm(policy: Policy, tenant: str, accounts: Accounts) -> str:
    """Return a new tenant's parent: the nearest tenant above its account, "" if there is none.

    Raises InvalidInputError: SW-VALUE, SW-TENANT-UNKNOWN.
    """
    changed(policy, TenantUpdate(tenant))
    require_account(accounts, tenant)
    return tenant_parent(tenant, accounts, policy)


def require_place(tenant: Tenant, parent: str | None) -> None:
    """Raise InvalidInputError (SW-VALUE) if the tenant is elsewhere than below ``parent``."""
    if parent not in {None, tenant.parent}:
        raise InvalidInputError(
            Code.VALUE,
            f"--parent {parent!r}: {tenant.name} is a tenant already, {below_text(tenant.parent)}.",
            f"Move it: slicewise tenant move {tenant.name} --parent {parent or repr('')}",
        )


def below_text(parent: str) -> str:
    """``below nlp``, or ``at the top``."""
    return f"below {parent}" if parent else "at the top"


def require_account(accounts: Accounts, name: str) -> None:
    """Raise InvalidInputError (SW-TENANT-UNKNOWN) unless Slurm has that account."""
    if name not in accounts:
        names = names_text(name, accounts.keys() - {ROOT_ACCOUNT})
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"Slurm has no account {name!r}; nothing was changed.",
            f"Accounts: {names}. Add one: sacctmgr add account NAME cluster=CLUSTER",
        )


def differences(policy: Policy, accounts: Accounts) -> tuple[AccountDifference, ...]:
    """Return the tenants that stand elsewhere than their accounts, sorted by name.

    Accounts that are no tenants are not reported.
    """
    differences = (_difference(name, policy, accounts) for name in sorted(policy))
    return tuple(difference for difference in differences if difference is not None)


def _difference(name: str, policy: Policy, accounts: Accounts) -> AccountDifference | None:
    parent = policy[name].parent
    if name not in accounts:
        return AccountDifference(name, "absent", parent=parent)
    place = tenant_parent(name, accounts, policy)
    return None if place == parent else AccountDifference(name, "moved", parent, place)


def take_over(policy: Policy, accounts: Accounts) -> tuple[TakeOver, ...]:
    """Return what must change so that every account becomes a tenant below its parent.

    The changes are ordered from the top down, so that no move makes a cycle. An account that can't
    be taken over has a refusal instead.
    """
    take_overs: list[TakeOver] = []
    for name in _downwards(accounts):
        place = tenant_parent(name, accounts, policy)
        if name in policy and policy[name].parent == place:
            continue
        take_over = _placed(name, place, policy)
        try:
            policy = changed(policy, TenantUpdate(name, parent=place))
        except InvalidInputError as error:
            take_over = TakeOver(take_over.difference, error.refusal)
        take_overs.append(take_over)
    return tuple(take_overs)


def _placed(name: str, place: str, policy: Policy) -> TakeOver:
    if name in policy:
        return TakeOver(AccountDifference(name, "moved", policy[name].parent, place))
    return TakeOver(AccountDifference(name, "new", slurm_parent=place))


def _downwards(accounts: Accounts) -> Iterable[str]:
    """Return every account but root, each after the account above it."""
    return sorted(accounts.keys() - {ROOT_ACCOUNT}, key=lambda name: (depth(name, accounts), name))


def depth(name: str, accounts: Accounts) -> int:
    """How many accounts are above this one."""
    above = 0
    while name := accounts.get(name, ""):
        above += 1
    return above
