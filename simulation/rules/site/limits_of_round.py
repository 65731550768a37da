"""Puts the settings that Slicewise wants into the model of Slurm, as sacctmgr would."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from slicewise.cluster.language.gres import tres_name
from slicewise.cluster.language.jobs import PartitionView
from slicewise.cluster.language.slurm.interface import Association
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS, is_ours, qos_name
from slicewise.slurm_plugin.rules.limits.desired import (
    EXEMPT,
    PREEMPT,
    PREEMPT_MODE,
    RUN_MINUTES,
    LimitSettings,
)
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_types
from slicewise.slurm_plugin.rules.quota.type_limits import type_limits
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, Policy
from slicewise.slurm_plugin.rules.round.wanted import Conf

_GRP_TRES = "grptres="
_REQUEUE = "requeue"
_NO_LIMITS = QosLimits()


def qos_limits(settings: LimitSettings, own: Mapping[str, QosLimits]) -> Mapping[str, QosLimits]:
    """The limits of each of Slicewise's QOS, but for the gate: no job of the model is in it.

    What the site has set of them itself (``own``), such as a priority, stays.
    """
    fields: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for key, setting in settings.items():
        if key.entity == "qos" and key.name != GATE_QOS:
            fields[key.name][key.field] = setting.value
    return {name: _laid_over(own.get(name, _NO_LIMITS), of) for name, of in fields.items()}


def _laid_over(own: QosLimits, of: Mapping[str, str]) -> QosLimits:
    limit = {
        field.removeprefix(_GRP_TRES): int(value)
        for field, value in of.items()
        if field.startswith(_GRP_TRES) and value
    }
    minutes = {"billing": int(of[RUN_MINUTES])} if of.get(RUN_MINUTES) else {}
    return QosLimits(
        grp_tres={**own.grp_tres, **limit},
        grp_run_mins={**own.grp_run_mins, **minutes},
        max_tres_per_account=own.max_tres_per_account,
        preempts=_names(of.get(PREEMPT, "")),
        preempt_exempt_s=int(of[EXEMPT] or 0) if EXEMPT in of else own.preempt_exempt_s,
        preempt_requeues=(
            of[PREEMPT_MODE] == _REQUEUE if PREEMPT_MODE in of else own.preempt_requeues
        ),
        priority=own.priority,
    )


@lru_cache(maxsize=8)
def _names(text: str) -> frozenset[str]:
    """The QOS of a list. All tenants preempt the same ones."""
    return frozenset(filter(None, text.split(",")))


def own_qos(limits_by_qos: Mapping[str, QosLimits], policy: Policy) -> Mapping[str, QosLimits]:
    """The limits of a site's Slurm, without those that Slicewise sets of its own QOS."""
    types = {
        qos_name(tenant): {tres_name(kind) for kind in of}
        for tenant, of in guaranteed_types(policy).items()
    }
    return {
        name: _without_ours(limits, {"billing", *types.get(name, ())}) if is_ours(name) else limits
        for name, limits in limits_by_qos.items()
        if name != GATE_QOS
    }


def _without_ours(limits: QosLimits, of_quotas: Collection[str]) -> QosLimits:
    """Slices, guaranteed types and budgets go, and whom it preempts."""
    return replace(
        limits,
        grp_tres=_without(limits.grp_tres, of_quotas),
        grp_run_mins=_without(limits.grp_run_mins, {"billing"}),
        preempts=frozenset(),
        preempt_exempt_s=0,
    )


def _without(limits: Mapping[str, int], ours: Collection[str]) -> Mapping[str, int]:
    return {tres: most for tres, most in limits.items() if tres not in ours}


def own_accounts(
    limits_by_account: Mapping[str, AccountLimits],
    policy: Policy,
    costs: Mapping[str, int],
    models: Mapping[str, str],
) -> Mapping[str, AccountLimits]:
    """The limits of a site's accounts, without the limits on types that Slicewise sets of them."""
    ours = {
        name: {tres_name(kind) for kind in type_limits(tenant.quota, costs, models)}
        for name, tenant in policy.items()
    }
    return {
        name: replace(
            limits,
            grp_tres={
                tres: most for tres, most in limits.grp_tres.items() if tres not in ours[name]
            },
        )
        if name in ours
        else limits
        for name, limits in limits_by_account.items()
    }


def account_limits(
    settings: LimitSettings, accounts: Mapping[str, AccountLimits]
) -> Mapping[str, AccountLimits]:
    """The accounts that get limits on types, with these limits beside what they have."""
    limits: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for key, setting in settings.items():
        if key.entity == "account" and key.field.startswith(_GRP_TRES) and setting.value:
            limits[key.name][key.field.removeprefix(_GRP_TRES)] = int(setting.value)
    return {
        name: replace(
            accounts.get(name, AccountLimits()),
            grp_tres={**accounts.get(name, AccountLimits()).grp_tres, **of},
        )
        for name, of in limits.items()
    }


def associations(cluster: SimulatedCluster, policy: Policy) -> tuple[Association, ...]:
    """The accounts as slurmdbd would show them; tenants that have none get one."""
    parents = {name: tenant.parent or ROOT_ACCOUNT for name, tenant in policy.items()}
    parents |= cluster.accounts
    names = ((name, parent or ROOT_ACCOUNT) for name, parent in sorted(parents.items()))
    rows = ((ROOT_ACCOUNT, ""), *names)
    return tuple(
        Association(
            cluster=cluster.name,
            account=name,
            user="",
            parent=parent,
            qos=frozenset(),
            default_qos="",
            grp_tres={},
        )
        for name, parent in rows
    )


def conf_of(cluster: SimulatedCluster, partitions: Iterable[str]) -> Conf:
    """What slurm.conf says: the managed partitions have the gate, all types are counted."""
    tres = ("billing", *sorted(f"gres/gpu:{kind}" for kind in set(_kinds(cluster))))
    return Conf(
        {"ClusterName": cluster.name, "AccountingStorageTRES": ",".join(tres)},
        tuple(PartitionView(name, {}, GATE_QOS) for name in sorted(partitions)),
    )


def _kinds(cluster: SimulatedCluster) -> Iterator[str]:
    for node in cluster.nodes:
        yield from node.gpus
