"""Puts the settings that Slicewise wants into the model of Slurm, as sacctmgr would."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cluster.language.jobs import PartitionView
from cluster.slurm.interface import Association
from simulation.cluster import SimulatedCluster
from simulation.slurm_model.requests import AccountLimits, QosLimits
from slurm_plugin.common.qos_names import GATE_QOS
from slurm_plugin.limits.desired import BILLING, EXEMPT, PREEMPT, PREEMPT_MODE, Settings
from slurm_plugin.quota.types import ROOT_ACCOUNT, Policy
from slurm_plugin.quota_cycle.wanted import Conf

_GRP_TRES = "grptres="
_REQUEUE = "requeue"


def qos_limits(settings: Settings) -> Mapping[str, QosLimits]:
    """The limits of each of Slicewise's QOS, but for the gate: no job of the model is in it."""
    fields: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for key, setting in settings.items():
        if key.entity == "qos" and key.name != GATE_QOS:
            fields[key.name][key.field] = setting.value
    return {
        name: QosLimits(
            grp_tres={"billing": int(of[BILLING])} if of.get(BILLING) else {},
            preempts=frozenset(filter(None, of.get(PREEMPT, "").split(","))),
            preempt_exempt_s=int(of.get(EXEMPT) or 0),
            preempt_requeues=of.get(PREEMPT_MODE, _REQUEUE) == _REQUEUE,
        )
        for name, of in fields.items()
    }


def account_limits(
    settings: Settings, accounts: Mapping[str, AccountLimits]
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
