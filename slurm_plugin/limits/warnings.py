"""Finds what prevents limits from being set or from binding."""

from collections.abc import Iterable

from cluster.slurm.interface import Association
from slurm_plugin.common.qos_names import can_have_qos, is_ours, qos_name
from slurm_plugin.limits.desired import (
    OVER_PARTITION,
    Allowed,
    Difference,
    SlurmLimits,
    type_limits,
)
from slurm_plugin.quota.accounts import AccountDifference, differences
from slurm_plugin.quota.types import ROOT_ACCOUNT

_SHOWN_NAMES = 5
_LONGEST_NAME = 40


def unnamed_warnings(left_out: Iterable[Difference]) -> tuple[str, ...]:
    """Describe the settings that ``can_be_named`` leaves out; () if there are none.

    It is one sentence with some of the names, written as Python literals.
    """
    names = sorted({one.user or one.key.name for one in left_out})
    if not names:
        return ()
    shown = ", ".join(ascii(name[:_LONGEST_NAME]) for name in names[:_SHOWN_NAMES])
    text = (
        f"{len(names)} names can't be given to sacctmgr, which reads brackets, commas and quotes"
        f" as its syntax: {shown}. Limits above them apply; Slicewise does not set their own"
        " limits and lists. Delete these accounts or users."
    )
    return (text,)


def _moved_text(one: AccountDifference) -> str:
    above = one.parent or ROOT_ACCOUNT
    return (
        f"Account {one.account} is {_below(one.slurm_parent)} in Slurm, {_below(one.parent)} in the"
        " ledger: limits on types above it in Slurm bind it too. Put it back:"
        f" sacctmgr modify account where name={one.account} set parent={above}; or adopt its"
        " place: slicewise tenant import."
    )


def _below(tenant: str) -> str:
    return f"below {tenant}" if tenant else "at the top"


def crowding_warnings(allowed: Allowed, found: SlurmLimits, most_jobs: str) -> tuple[str, ...]:
    """Warn in one sentence about tenants whose users could take all of slurmctld's job records.

    ``most_jobs`` is Slurm's MaxJobCount. () if there are no such tenants.
    """
    tenants = sorted(allowed.policy.keys() & found.accounts.keys())
    open_ones = [name for name in tenants if not _bounds_submits(found.accounts[name], found)]
    if not open_ones:
        return ()
    others = f" and {len(open_ones) - _SHOWN_NAMES} more" if len(open_ones) > _SHOWN_NAMES else ""
    shown = ", ".join(ascii(name[:_LONGEST_NAME])[1:-1] for name in open_ones[:_SHOWN_NAMES])
    text = (
        f"Nothing bounds how many jobs the users of {shown}{others} may have waiting: one of them"
        f" can use up MaxJobCount={most_jobs}, and no other user can submit. Set MaxSubmitJobs on "
        "the accounts, such as 1000: sacctmgr modify account where name=ACCOUNT set "
        "MaxSubmitJobs=1000 [SW-SUBMITS-OPEN]."
    )
    return (text,)


def _bounds_submits(row: Association, found: SlurmLimits) -> bool:
    """Whether the account, or one above it, bounds how many jobs may be submitted."""
    # This must not recurse, as coordinators may nest accounts to any depth.
    account: Association | None = row
    while account is not None and not account.bounds_submits:
        account = found.accounts.get(account.parent)
    return account is not None


def unknown_qos(named: Iterable[str], found: SlurmLimits) -> tuple[str, ...]:
    """Report the site's QOS that stand for a class but do not exist, one sentence each."""
    return tuple(
        f"[qos] of slicewise.toml names {name}, but slurmdbd has no such QOS: no job can use it."
        for name in sorted(named)
        if name not in found.qos
    )


def warnings(allowed: Allowed, found: SlurmLimits) -> tuple[str, ...]:
    """Describe what prevents limits from being set or from binding, one sentence each."""
    absent = sorted(allowed.policy.keys() - found.accounts.keys())
    tenants = sorted(allowed.policy.keys() & found.accounts.keys())
    listed = {name for row in (*found.accounts.values(), *found.users) for name in row.qos}
    through = sorted(
        name
        for name in listed & found.qos.keys()
        if not is_ours(name)
        and OVER_PARTITION in found.qos[name].flags
        and "billing" in found.qos[name].grp_tres
    )
    unknown = sorted(
        {
            kind
            for tenant in tenants
            for kind in type_limits(allowed.policy[tenant].quota, allowed.costs, allowed.models)
            if f"gres/gpu:{kind}" not in found.tres
        }
    )
    places = {name: row.parent for name, row in found.accounts.items()}
    moved = [one for one in differences(allowed.policy, places) if one.kind == "moved"]
    return (
        *(f"Slurm has no account {name}: its quota waits." for name in absent),
        *(
            f"Tenant {name} can't have limits: Slicewise uses QOS {qos_name(name)} for something"
            " else. Give the account another name, and import it."
            for name in sorted(allowed.policy)
            if not can_have_qos(name)
        ),
        *map(_moved_text, moved),
        *(
            f"QOS {name} has flag OverPartQOS and a GrpTRES=billing: its jobs pass the gate and"
            " count towards no quota."
            for name in through
        ),
        *(f"Slurm does not count GPUs of type {kind}: no limit on them." for kind in unknown),
    )
