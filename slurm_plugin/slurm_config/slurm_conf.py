"""Makes the lines that slurm.conf needs for the quotas to hold, and finds what is missing."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from cluster.language.billing import BillingUnit
from cluster.language.jobs import NodeView, PartitionView
from cluster.slurm.fields import has_default_memory
from slurm_plugin.common.qos_names import GATE_QOS
from slurm_plugin.slurm_config.pads import is_pad

_ENFORCED = ("associations", "limits", "qos")
_BATCH_SCHED_DELAY = "3"
"""Slurm's default, in seconds."""


def conf_lines(
    partitions: Iterable[str], costs: Mapping[str, int], billing: BillingUnit
) -> tuple[str, ...]:
    """Lines for slurm.conf. ``costs`` are millislices by GRES type.

    A partition's line has only its weights and the gate: a site adds these to the line that it has.
    slurmctld ends if a partition names a QOS that does not exist.
    """
    weights = billing_weights(costs, billing)
    return (
        f"AccountingStorageEnforce={','.join(_ENFORCED)}",
        f"AccountingStorageTRES={accounting_tres(costs)}",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        *(
            f'PartitionName={name} QOS={GATE_QOS} TRESBillingWeights="{weights}"'
            for name in partitions
        ),
    )


def billing_weights(costs: Mapping[str, int], billing: BillingUnit) -> str:
    """``TRESBillingWeights`` of a managed partition, with which a job's billing is its slices."""
    weights = (f"GRES/gpu:{kind}={billing.held(cost)}" for kind, cost in costs.items())
    return ",".join(("CPU=0", "Mem=0", *weights))


def accounting_tres(types: Iterable[str]) -> str:
    """``AccountingStorageTRES``: GPUs in total and of each type."""
    return ",".join(_counted(types))


def conf_faults(
    config: Mapping[str, str],
    partitions: Iterable[PartitionView],
    managed: Sequence[str],
    costs: Mapping[str, int],
    billing: BillingUnit,
) -> tuple[str, ...]:
    """What the running slurmctld lacks of these settings, one sentence each."""
    views = {view.name: view for view in partitions}
    return (
        *_config_faults(config, costs),
        *(f"There is no partition {name}." for name in managed if name not in views),
        *(
            fault
            for name in managed
            if name in views
            for fault in _weight_faults(views[name], costs, billing)
        ),
        *(
            f"Partition {name} gives a job that asks for no memory all that its node has, so that "
            "the node's other GPUs lie idle: set DefMemPerGPU or DefMemPerCPU on it."
            for name in managed
            if name in views and not views[name].has_default_memory and _counts_memory(config)
        ),
        *(fault for name in managed if name in views for fault in _gate_faults(views[name])),
    )


def slow_starts(config: Mapping[str, str]) -> Iterator[str]:
    """Say how long slurmctld may wait before it looks at a slot that was released.

    Slurm starts no batch job right at its submission or release, but within ``batch_sched_delay``.
    """
    words = config.get("SchedulerParameters", "").split(",")
    named = dict(word.split("=", 1) for word in words if "=" in word)
    delay = named.get("batch_sched_delay", _BATCH_SCHED_DELAY)
    if delay != "0":
        yield (
            f"SchedulerParameters has batch_sched_delay={delay} (Slurm's default is"
            f" {_BATCH_SCHED_DELAY}): a replica that is released may wait as many seconds before"
            " Slurm looks at it, also where GPUs are free. Where services shall wake sooner: 0."
        )


def closed_to_qos(
    partitions: Iterable[PartitionView], managed: Collection[str], ours: Collection[str]
) -> tuple[str, ...]:
    """Managed partitions that do not accept all QOS of ``ours``, one sentence each."""
    faults: list[str] = []
    for view in partitions:
        if view.name not in managed:
            continue
        if view.allow_qos is not None and (lacking := sorted(set(ours) - view.allow_qos)):
            faults.append(
                f"Partition {view.name} has AllowQos without {', '.join(lacking)}: their jobs do "
                "not start there. Add them, or take AllowQos away: the gate keeps all other QOS "
                "out."
            )
        if denied := sorted(view.deny_qos & set(ours)):
            faults.append(
                f"Partition {view.name} has DenyQos with {', '.join(denied)}: their jobs do not "
                "start there. Take them out of it."
            )
    return tuple(faults)


def price_faults(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, int]
) -> tuple[str, ...]:
    """GPUs of managed partitions that have no price, one sentence for each type."""
    unpriced = defaultdict[str, list[str]](list)
    for node in nodes:
        if node.is_in(partitions):
            kinds = [
                f"gpu:{kind}"
                for kind, count in node.gpus.items()
                if count and kind not in costs and not is_pad(kind)
            ]
            for kind in (*kinds, *(["gpu"] if node.untyped_gpus else [])):
                unpriced[kind].append(node.name)
    return tuple(_unpriced(kind, names) for kind, names in sorted(unpriced.items()))


def _unpriced(kind: str, nodes: Sequence[str]) -> str:
    more = len(nodes) - 1
    has = f"{nodes[0]} and {more} more node{'s' * (more > 1)} have" if more else f"{nodes[0]} has"
    if kind == "gpu":
        return (
            f"{has} GPUs without a type: Slurm bills by type, so they are not charged and no quota"
            " counts them. Give them one, as in Gres=gpu:a100:8, and name it in [gpus] of"
            " slicewise.toml: whole."
        )
    return (
        f"{has} {kind}, which has no price: it is not charged and no quota counts it. Name"
        " it in [gpus] of slicewise.toml: types, or whole for GPUs that are not cut."
    )


def _counts_memory(config: Mapping[str, str]) -> bool:
    """Whether Slurm allots memory, and slurm.conf gives no default for all partitions."""
    is_allotted = "MEMORY" in config.get("SelectTypeParameters", "").upper()
    return is_allotted and not has_default_memory(config)


def _config_faults(config: Mapping[str, str], costs: Mapping[str, int]) -> Iterable[str]:
    enforced = _lacking(_ENFORCED, config.get("AccountingStorageEnforce", ""))
    if enforced:
        yield f"AccountingStorageEnforce lacks {', '.join(enforced)}: no limit is enforced."
    counted = _lacking(_counted(costs), config.get("AccountingStorageTRES", ""))
    if counted:
        yield f"AccountingStorageTRES lacks {', '.join(counted)}: such GPUs are not charged."
    if config.get("PreemptType") != "preempt/qos":
        yield "PreemptType is not preempt/qos: lenders wait for borrowed jobs to end."
    elif config.get("PreemptMode", "OFF").upper() == "OFF":
        yield "PreemptMode is OFF: lenders wait for borrowed jobs to end."
    if "MAX_TRES" in config.get("PriorityFlags", ""):
        yield "PriorityFlags has MAX_TRES: a job is billed for one of its GPU types only."


def _lacking(needed: Iterable[str], text: str) -> list[str]:
    has = text.lower().split(",")
    return [word for word in needed if word.lower() not in has]


def _counted(costs: Iterable[str]) -> tuple[str, ...]:
    return ("gres/gpu", *(f"gres/gpu:{kind}" for kind in costs))


def _weight_faults(
    partition: PartitionView, costs: Mapping[str, int], billing: BillingUnit
) -> Iterable[str]:
    """Billing counts slices only if each type weighs its cost and nothing else weighs."""
    weights = partition.billing_weights
    where = f"TRESBillingWeights of partition {partition.name}"
    expected = {f"gres/gpu:{kind}".lower(): billing.held(cost) for kind, cost in costs.items()}
    scales = {Fraction(weights.get(tres, 0)) / due for tres, due in expected.items()}
    if len(scales) == 1 and (scale := scales.pop()) not in {0, 1}:
        yield (
            f"{where} are those of billing_per_slice = {billing.per_slice * scale}, and [cluster] "
            f"of slicewise.toml says {billing.per_slice}: a job counts {scale} times what it "
            "should. Write the line of slicewise compile --slurm-conf into slurm.conf, or correct "
            "the setting."
        )
    else:
        for tres, due in expected.items():
            if weights.get(tres) != due:
                yield f"{where}: {tres} is {_number(weights.get(tres))}, not {due}."
    for tres, weight in _others(weights, expected):
        yield f"{where}: {tres} is {_number(weight)}, not 0: billing counts more than GPUs."


def _gate_faults(partition: PartitionView) -> Iterable[str]:
    if partition.qos != GATE_QOS:
        yield (
            f"Partition {partition.name} has no QOS={GATE_QOS} on its line: no quota limits jobs "
            "there in QOS other than Slicewise's. Add it once sacctmgr shows that QOS: slurmctld"
            " exits if the QOS does not exist."
        )


def _others(weights: Mapping[str, float], expected: Collection[str]) -> list[tuple[str, float]]:
    # Slurm bills CPUs for a partition without any weights.
    others = {"cpu": 1.0} if not weights else {}
    others.update({tres: weight for tres, weight in weights.items() if tres not in expected})
    return [(tres, weight) for tres, weight in others.items() if weight]


def _number(weight: float | None) -> str:
    return "not set" if weight is None else f"{weight:g}"
