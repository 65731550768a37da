"""Checks QOS, limits and quotas: what Slurm has beside what the ledger says."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, warning
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.units import slices_text
from slicewise.slurm_plugin.rules.common.free_instances import is_usable
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, is_ours, qos_name
from slicewise.slurm_plugin.rules.quota.nodes import has_gpus, instances_of
from slicewise.slurm_plugin.rules.quota.overcommitment import over_words
from slicewise.slurm_plugin.rules.quota.tenants import (
    overcommitted_millislices,
    overcommitted_types,
)
from slicewise.slurm_plugin.rules.quota.types import Policy

_SHOWN = 5
_NOTHING = re.compile(r"(?:^|,)(?:billing|cpu|mem|node|gres/gpu[^=,]*)=0(?=,|$)|^0$|^00:00:00$")
"""Of a limit with which no job starts."""
_TRES = re.compile(r"=[^,=]*(?=,|$)")


def drift_checks(differences: int, out_of_band: Sequence[str], mode: str) -> Iterator[Finding]:
    """Say how many limits differ, in mode enforce, and which were changed outside Slicewise."""
    if mode != "enforce":
        return
    if differences:
        yield warning(
            Code.LIMITS_UNSETTLED,
            f"{differences} settings in Slurm are not as the ledger says",
            "quotas hold as Slurm has them",
            Mend(Place.ACCOUNTS, "slicewise compile"),
            advice="The daemon puts them right within seconds; if they stay, its log says why.",
        )
    for text in out_of_band[:_SHOWN]:
        yield warning(Code.LIMITS_BY_HAND, text.removesuffix("."))


def bound_checks(bounds: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Name limits on Slicewise's QOS that it never sets; ``bounds`` are those, by QOS."""
    together: dict[tuple[str, str], list[str]] = {}
    for name in sorted(filter(is_ours, bounds)):
        for key, text in bounds[name].items():
            together.setdefault((key, text), []).append(name)
    for (key, text), names in together.items():
        is_shut = not key.startswith("Min") and bool(_NOTHING.search(text))
        # Of TRES each one is taken back by itself.
        none = _TRES.sub("=-1", text) if "=" in text else "-1"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield (error if is_shut else hint)(
            Code.LIMITS_BY_HAND,
            f"QOS {', '.join(names[:_SHOWN])}{more} has {key}={text}, which Slicewise never sets",
            "no job starts in it, whatever its quota" if is_shut else "it stops jobs within quota",
            Mend(Place.ACCOUNTS, f"sacctmgr modify qos {','.join(names)} set {key}={none}"),
        )


def exempt_checks(
    qos: Mapping[str, Qos], policy: Policy, with_term: Collection[str], grace_s: int
) -> Iterator[Finding]:
    """Name borrowed QOS whose jobs may not be preempted for long; ``with_term`` mean that."""
    ours = (qos[name] for name in map(borrowed_qos, policy) if name in qos.keys() - with_term)
    names = sorted(qos.name for qos in ours if (qos.preempt_exempt_s or 0) > grace_s)
    if names:
        yield warning(
            Code.LIMITS_BY_HAND,
            f"PreemptExemptTime of {', '.join(names[:_SHOWN])} is longer than [lending] grace_s",
            "Slurm leaves borrowed jobs alone for as long after their start: lenders wait",
            Mend(Place.ACCOUNTS, f"sacctmgr modify qos {','.join(names)} set PreemptExemptTime=-1"),
            advice="Where loans shall last for a while, say so in [lending] term_s.",
        )


def admin_checks(
    admins: Mapping[str, str], rows: Iterable[Association], policy: Policy, own: Collection[str]
) -> Iterator[Finding]:
    """Name members of tenants who may change every limit; ``own`` are Slurm's and Slicewise's."""
    members = {row.user for row in rows if row.account in policy}
    names = sorted(members & admins.keys() - {"root", *own})
    if names:
        shown = ", ".join(f"{name} ({admins[name]})" for name in names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield hint(
            Code.LIMITS_ADMINS,
            f"Members of tenants have an AdminLevel in Slurm: {shown}{more}",
            "they may change QOS and limits, their own tenant's, too",
            Mend(Place.ACCOUNTS, f"sacctmgr modify user {','.join(names)} set AdminLevel=None"),
            advice="If they run this cluster, accept the code.",
        )


def group_checks(policy: Policy) -> Iterator[Finding]:
    """Name groups that lend nothing, so that tenants below them lend nothing outside either."""
    for name, tenant in sorted(policy.items()):
        below = [tenant for tenant in policy.values() if tenant.parent == name]
        lenders = sorted(tenant.name for tenant in below if tenant.quota.lending_limit_millislices)
        if lenders and not tenant.quota.lending_limit_millislices:
            yield hint(
                Code.LENDING_GROUP,
                f"{name} has no lending limit, but {', '.join(lenders[:_SHOWN])} below it has",
                f"what is idle there is lent within {name} only, and to no tenant outside",
                Mend(
                    Place.ACCOUNTS,
                    f"slicewise tenant-quota set {name} --lending-limit unlimited",
                ),
            )


def capacity_checks(
    policy: Policy, nodes: Iterable[NodeView], partitions: frozenset[str], capacity: int | None
) -> Iterator[Finding]:
    """Say by how much quotas exceed what managed nodes have, and which of these are down."""
    above = overcommitted_millislices(policy, capacity or 0)
    if not capacity or not above:
        return
    down = sorted(n.name for n in nodes if has_gpus(n, partitions) and not is_usable(n))
    out = f" Of these nodes no job can have: {', '.join(down[:_SHOWN])}." if down else ""
    yield warning(
        Code.QUOTA_CAPACITY,
        f"{over_words(above, capacity).capitalize()}: {slices_text(capacity)}",
        "jobs within their guarantee may wait for each other",
        Mend(Place.ACCOUNTS, "slicewise tenant-quota set NAME --nominal N"),
        advice=f"Give less in all, or bring back nodes that were taken out of slurm.conf.{out}",
    )


def type_checks(
    policy: Policy, nodes: Iterable[NodeView], partitions: frozenset[str]
) -> Iterator[Finding]:
    """Name types of which quotas guarantee more instances than managed nodes have now."""
    instances = instances_of(nodes, partitions)
    for gres_type, count in overcommitted_types(policy, instances).items():
        yield warning(
            Code.QUOTA_CAPACITY,
            f"Quotas guarantee {count} instances of {gres_type},"
            f" the cluster has {instances.get(gres_type, 0)}",
            "jobs within their guarantee may wait for each other",
            Mend(Place.ACCOUNTS, f"slicewise tenant-quota set NAME --type-nominal {gres_type}=N"),
            advice="Guarantee fewer, or have GPUs cut into more of them.",
        )


def cluster_checks(policy: Policy, elsewhere: Collection[str]) -> Iterator[Finding]:
    """Name tenants that another cluster on the same slurmdbd has, too.

    ``elsewhere`` are the QOS that accounts of other clusters may use.
    """
    names = sorted(
        name for name in policy if {qos_name(name), borrowed_qos(name)}.intersection(elsewhere)
    )
    if names:
        others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = ", ".join(names[:_SHOWN]) + others
        yield warning(
            Code.LIMITS_SHARED,
            f"Tenants that another cluster of this slurmdbd has, too: {shown}",
            "a QOS has one limit for all clusters, so the daemons of two would set it in turn",
            advice="Give such an account another name on one of the clusters.",
        )


def minutes_checks(rows: Iterable[Association], policy: Policy) -> Iterator[Finding]:
    """Name tenants whose jobs the site's own GrpTRESMins stops, which Slicewise can't foresee."""
    for row in rows:
        if row.user or row.account not in policy or not row.grp_tres_mins:
            continue
        limits = ",".join(f"{tres}={most}" for tres, most in sorted(row.grp_tres_mins.items()))
        yield hint(
            Code.LIMITS_MINUTES,
            f"Account {row.account} has GrpTRESMins={limits} of the site's own",
            "once that is used up its jobs wait (AssocGrp...Minutes), whatever quota and budget"
            " say",
            Mend(
                Place.ACCOUNTS,
                f"slicewise budget set {row.account} --period month --amount SLICE_HOURS",
            ),
            advice="A budget does the same with slices; keep both only if you mean both.",
        )
