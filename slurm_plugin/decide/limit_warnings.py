"""What keeps limits from being set or from holding."""

from collections.abc import Collection, Iterable

from slurm_plugin.decide.limits import Allowed, Difference, Found, is_ours, type_limits

_SHOWN_NAMES = 5
_LONGEST_NAME = 40


def unnamed_warnings(left_out: Iterable[Difference]) -> tuple[str, ...]:
    """What ``can_be_named`` leaves out, in a sentence of some names, as Python writes them."""
    names = sorted({one.user or one.key.name for one in left_out})
    if not names:
        return ()
    shown = ", ".join(ascii(name[:_LONGEST_NAME]) for name in names[:_SHOWN_NAMES])
    text = (
        f"{len(names)} names can't be told to sacctmgr, which takes brackets, commas and quotes "
        f"for its own: {shown}. What is limited above them holds; their own limits and lists are "
        "not looked after. Delete these accounts or users."
    )
    return (text,)


def warnings(allowed: Allowed, found: Found, managed: Collection[str]) -> tuple[str, ...]:
    """What keeps limits from being set or from holding, one sentence each.

    ``managed`` are the QOS of the managed partitions.
    """
    absent = sorted(allowed.policy.keys() - found.accounts.keys())
    tenants = sorted(allowed.policy.keys() & found.accounts.keys())
    listed = {name for tenant in tenants for name in found.accounts[tenant].qos}
    hiding = sorted(
        name
        for name in {*listed, *managed} & found.qos.keys()
        if not is_ours(name) and "billing" in found.qos[name].grp_tres
    )
    unknown = sorted(
        {
            kind
            for tenant in tenants
            for kind in type_limits(allowed.policy[tenant].quota, allowed.costs, allowed.models)
            if f"gres/gpu:{kind}" not in found.tres
        }
    )
    elsewhere = sorted(
        (row.account, row.user, row.own_default_qos)
        for row in found.users
        if row.account in allowed.policy
        and row.own_default_qos
        and not is_ours(row.own_default_qos)
    )
    return (
        *(f"Slurm has no account {name}: its quota waits." for name in absent),
        *(f"QOS {name} has a GrpTRES=billing, which hides that of accounts." for name in hiding),
        *(f"Slurm does not count GPUs of type {kind}: no limit on them." for kind in unknown),
        *(
            f"User {user} of {account} has the default QOS {qos}: should nobody answer his "
            "submissions, his jobs run outside of the tenant's own QOS and can't be preempted."
            for account, user, qos in elsewhere
        ),
    )
