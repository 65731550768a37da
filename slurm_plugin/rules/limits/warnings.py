"""Finds what prevents limits from being set or from binding."""

from collections.abc import Iterable, Iterator

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, warning
from slicewise.cluster.language.gres import tres_name
from slicewise.cluster.language.slurm.interface import Association
from slicewise.slurm_plugin.rules.common.qos_names import (
    borrowed_qos,
    can_have_qos,
    is_ours,
    qos_name,
)
from slicewise.slurm_plugin.rules.limits.desired import (
    OVER_PARTITION,
    Allowed,
    Difference,
    SlurmLimits,
)
from slicewise.slurm_plugin.rules.quota.accounts import AccountDifference, below_text, differences
from slicewise.slurm_plugin.rules.quota.type_limits import type_limits
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT

_SHOWN_NAMES = 5
_MOST_SUBMITS = "MaxSubmitJobs=1000"
_LONGEST_NAME = 40


def unnamed_findings(left_out: Iterable[Difference]) -> tuple[Finding, ...]:
    """Describe the settings that ``can_be_named`` leaves out; () if there are none.

    It is one finding with some of the names, written as Python literals.
    """
    names = sorted({difference.user or difference.key.name for difference in left_out})
    if not names:
        return ()
    shown = ", ".join(ascii(name[:_LONGEST_NAME]) for name in names[:_SHOWN_NAMES])
    return (
        warning(
            Code.TENANT_ACCOUNTS,
            f"{len(names)} names can't be given to sacctmgr, which reads brackets, commas and"
            f" quotes as its syntax: {shown}",
            advice="Limits above them apply; Slicewise does not set their own limits and lists."
            " Delete these accounts or users.",
        ),
    )


def _moved(difference: AccountDifference, cluster: str) -> Finding:
    above = difference.parent or ROOT_ACCOUNT
    put_back = modify_account(difference.account, cluster, f"parent={above}")
    return warning(
        Code.TENANT_ACCOUNTS,
        f"Account {difference.account} is {below_text(difference.slurm_parent)} in Slurm,"
        f" {below_text(difference.parent)} in the ledger",
        "limits on types above it in Slurm bind it too",
        Mend(Place.ACCOUNTS, put_back),
        advice=f"Put it back: {put_back}; or adopt its place: slicewise tenant import.",
    )


def modify_account(account: str, cluster: str, setting: str) -> str:
    """Command that sets it on this cluster: without a name, sacctmgr would on all clusters."""
    return f"sacctmgr modify account where name={account} cluster={cluster} set {setting}"


def place_warning(tenant: str, place: str, slurms: str, cluster: str) -> str:
    """Say that the tenant is below ``place`` in the ledger, but below ``slurms`` in Slurm.

    "" is the top.
    """
    return (
        f"In Slurm {tenant} is {below_text(slurms)}, and its limits bind"
        f" there: {modify_account(tenant, cluster, f'parent={place or ROOT_ACCOUNT}')}"
    )


def crowding_findings(
    allowed: Allowed, slurm_limits: SlurmLimits, most_jobs: str
) -> tuple[Finding, ...]:
    """Warn once about the tenants whose users could take all of slurmctld's job records.

    ``most_jobs`` is Slurm's MaxJobCount. () if there are no such tenants.
    """
    tenants = sorted(allowed.policy.keys() & slurm_limits.accounts.keys())
    open_ones = [
        name for name in tenants if not _bounds_submits(slurm_limits.accounts[name], slurm_limits)
    ]
    if not open_ones:
        return ()
    others = f" and {len(open_ones) - _SHOWN_NAMES} more" if len(open_ones) > _SHOWN_NAMES else ""
    shown = ", ".join(ascii(name[:_LONGEST_NAME])[1:-1] for name in open_ones[:_SHOWN_NAMES])
    return (
        warning(
            Code.SUBMITS_OPEN,
            f"Nothing bounds how many jobs the users of {shown}{others} may have waiting",
            f"one of them can use up MaxJobCount={most_jobs}, and no other user can submit",
            *(
                Mend(Place.ACCOUNTS, modify_account(name, slurm_limits.cluster, _MOST_SUBMITS))
                for name in open_ones
                if can_have_qos(name)
            ),
            advice="Set MaxSubmitJobs on the accounts, such as 1000: "
            + modify_account("ACCOUNT", slurm_limits.cluster, _MOST_SUBMITS),
        ),
    )


def _bounds_submits(row: Association, slurm_limits: SlurmLimits) -> bool:
    """Whether the account, or one above it, bounds how many jobs may be submitted."""
    # This must not recurse, as coordinators may nest accounts to any depth.
    account: Association | None = row
    while account is not None and not account.bounds_submits:
        account = slurm_limits.accounts.get(account.parent)
    return account is not None


def unknown_qos(named: Iterable[str], slurm_limits: SlurmLimits) -> tuple[Finding, ...]:
    """Report the site's QOS that stand for a class but do not exist."""
    return tuple(
        warning(
            Code.CONF_DIFFERS,
            f"[qos] of slicewise.toml names {name}, but slurmdbd has no such QOS",
            "no job can use it",
            Mend(Place.ACCOUNTS, f"sacctmgr add qos {name}"),
        )
        for name in sorted(named)
        if name not in slurm_limits.qos
    )


def limit_findings(allowed: Allowed, slurm_limits: SlurmLimits) -> tuple[Finding, ...]:
    """Describe what prevents limits from being set or from binding."""
    absent = sorted(allowed.policy.keys() - slurm_limits.accounts.keys())
    tenants = sorted(allowed.policy.keys() & slurm_limits.accounts.keys())
    listed = {
        name for row in (*slurm_limits.accounts.values(), *slurm_limits.users) for name in row.qos
    }
    through = sorted(
        name
        for name in listed & slurm_limits.qos.keys()
        if not is_ours(name)
        and OVER_PARTITION in slurm_limits.qos[name].flags
        and "billing" in slurm_limits.qos[name].grp_tres
    )
    unknown = sorted(
        {
            gres_type
            for tenant in tenants
            for gres_type in (
                *type_limits(allowed.policy[tenant].quota, allowed.costs, allowed.models),
                *allowed.policy[tenant].quota.type_nominals,
            )
            if tres_name(gres_type) not in slurm_limits.tres
        }
    )
    places = {name: row.parent for name, row in slurm_limits.accounts.items()}
    moved = [
        difference
        for difference in differences(allowed.policy, places)
        if difference.kind == "moved"
    ]
    return (
        *(_absent(name, slurm_limits.cluster) for name in absent),
        *(
            error(
                Code.TENANT_ACCOUNTS,
                f"Tenant {name} can't have limits",
                f"Slicewise uses QOS {qos_name(name)} for something else",
                advice="Give the account another name, and import it.",
            )
            for name in sorted(allowed.policy)
            if not can_have_qos(name)
        ),
        *(_moved(difference, slurm_limits.cluster) for difference in moved),
        *(
            error(
                Code.LIMITS_PASSED,
                f"QOS {name} has flag OverPartQOS and a GrpTRES=billing",
                "its jobs pass the gate and count towards no quota",
                Mend(Place.ACCOUNTS, f"sacctmgr modify qos {name} set Flags-=OverPartQOS"),
            )
            for name in through
        ),
        *_announced(allowed, slurm_limits),
        *(
            warning(
                Code.CONF_LIMITS,
                f"Slurm does not count GPUs of type {gres_type}",
                "no limit on them",
                advice="AccountingStorageTRES must list the type.",
            )
            for gres_type in unknown
        ),
    )


def _announced(allowed: Allowed, slurm_limits: SlurmLimits) -> Iterator[Finding]:
    """Warn once of the borrowed QOS in which Slurm announces preemptions (docs/decisions/0045).

    Slurm has the QOS of all clusters on the same slurmdbd; those of other tenants are theirs.
    """
    ours = map(borrowed_qos, allowed.policy)
    names = sorted(
        name for name in ours if name in slurm_limits.qos and slurm_limits.qos[name].grace_s
    )
    if not names:
        return
    others = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    yield warning(
        Code.LIMITS_GRACE,
        f"GraceTime is set on {', '.join(names[:_SHOWN_NAMES])}{others}",
        "preempted jobs fail that end with their srun, and jobs that preempt wait for one another",
        Mend(Place.ACCOUNTS, f"sacctmgr modify qos {','.join(names)} set GraceTime=0"),
        advice="KillWait is the time in which replicas finish their requests.",
    )


def _absent(name: str, cluster: str) -> Finding:
    add = f"sacctmgr add account {name} cluster={cluster}"
    return warning(
        Code.TENANT_ACCOUNTS,
        f"Slurm has no account {name}",
        "its quota waits",
        *([Mend(Place.ACCOUNTS, add)] if can_have_qos(name) else []),
    )
