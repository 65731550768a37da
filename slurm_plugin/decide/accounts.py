"""Slurm's account tree beside the tenants': what differs, what to take over."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.errors import InvalidInputError, Refusal
from slurm_plugin.decide.policy import ROOT_ACCOUNT, Policy, TenantUpdate
from slurm_plugin.decide.tenants import changed

Accounts = Mapping[str, str]
"""The parent of each account that Slurm has, by name; those at the top have root."""


@dataclass(frozen=True)
class AccountDifference:
    """One account that the ledger and Slurm do not have in the same place.

    Attributes:
        kind: ``new``: Slurm's alone; ``moved``: below another tenant; ``absent``: not in Slurm.
        parent: the tenant above it in the ledger, "" at the top.
        slurm_parent: the nearest account above it in Slurm that is a tenant.
    """

    account: str
    kind: Literal["new", "moved", "absent"]
    parent: str = ""
    slurm_parent: str = ""


@dataclass(frozen=True)
class TakeOver:
    """One difference on its way into the ledger; with a refusal it stays out."""

    difference: AccountDifference
    refusal: Refusal | None = None


def tenant_parent(account: str, accounts: Accounts, tenants: Container[str]) -> str:
    """The nearest account above that is a tenant; "" if there is none."""
    above = accounts.get(account, "")
    while above and above not in tenants:
        above = accounts.get(above, "")
    return above


def differences(policy: Policy, accounts: Accounts) -> tuple[AccountDifference, ...]:
    """Where the tenants' places are not those of their accounts, by name."""
    found = (_difference(name, policy, accounts) for name in sorted(policy))
    return tuple(one for one in found if one is not None)


def _difference(name: str, policy: Policy, accounts: Accounts) -> AccountDifference | None:
    parent = policy[name].parent
    if name not in accounts:
        return AccountDifference(name, "absent", parent=parent)
    place = tenant_parent(name, accounts, policy)
    return None if place == parent else AccountDifference(name, "moved", parent, place)


def take_over(policy: Policy, accounts: Accounts) -> tuple[TakeOver, ...]:
    """What makes a tenant of every account, each below its parent: from the top down, so that no
    move makes a cycle. Accounts that can't be taken over keep their refusal.
    """
    found: list[TakeOver] = []
    for name in _downwards(accounts):
        place = tenant_parent(name, accounts, policy)
        if name in policy and policy[name].parent == place:
            continue
        one = _placed(name, place, policy)
        try:
            policy = changed(policy, TenantUpdate(name, parent=place))
        except InvalidInputError as error:
            one = TakeOver(one.difference, error.refusal)
        found.append(one)
    return tuple(found)


def _placed(name: str, place: str, policy: Policy) -> TakeOver:
    if name in policy:
        return TakeOver(AccountDifference(name, "moved", policy[name].parent, place))
    return TakeOver(AccountDifference(name, "new", slurm_parent=place))


def _downwards(accounts: Accounts) -> Iterable[str]:
    """Every account but root, each after the one above it."""
    return sorted(accounts.keys() - {ROOT_ACCOUNT}, key=lambda name: (_depth(name, accounts), name))


def _depth(name: str, accounts: Accounts) -> int:
    depth = 0
    while name := accounts.get(name, ""):
        depth += 1
    return depth
