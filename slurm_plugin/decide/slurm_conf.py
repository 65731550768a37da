"""The lines that slurm.conf needs for the quotas to hold, and what of them is missing."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from cluster.jobs import PartitionView
from cluster.slurm.values import has_default_memory

_ENFORCED = ("associations", "limits", "qos")


def conf_lines(partitions: Iterable[str], costs: Mapping[str, int]) -> tuple[str, ...]:
    """Lines for slurm.conf. ``costs`` are millislices by GRES type.

    A partition's line is its weights only: a site adds them to the line that it has.
    """
    weights = billing_weights(costs)
    return (
        f"AccountingStorageEnforce={','.join(_ENFORCED)}",
        f"AccountingStorageTRES={accounting_tres(costs)}",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        *(f'PartitionName={name} TRESBillingWeights="{weights}"' for name in partitions),
    )


def billing_weights(costs: Mapping[str, int]) -> str:
    """``TRESBillingWeights`` of a managed partition: a job's billing is its millislices."""
    return ",".join(("CPU=0", "Mem=0", *(f"GRES/gpu:{kind}={costs[kind]}" for kind in costs)))


def accounting_tres(types: Iterable[str]) -> str:
    """``AccountingStorageTRES``: GPUs together and of each type."""
    return ",".join(_counted(types))


def conf_faults(
    config: Mapping[str, str],
    partitions: Iterable[PartitionView],
    managed: Sequence[str],
    costs: Mapping[str, int],
) -> tuple[str, ...]:
    """What of that the running slurmctld does not have, one sentence each."""
    views = {view.name: view for view in partitions}
    return (
        *_config_faults(config, costs),
        *(f"There is no partition {name}." for name in managed if name not in views),
        *(
            fault
            for name in managed
            if name in views
            for fault in _weight_faults(views[name], costs)
        ),
        *(
            f"Partition {name} gives a job that asks for no memory all that its node has, so that "
            "the node's other GPUs lie idle: set DefMemPerGPU or DefMemPerCPU on it."
            for name in managed
            if name in views and not views[name].has_default_memory and _counts_memory(config)
        ),
        *(
            f"Partition {name} is not managed, but bills: jobs there count towards all limits, "
            "and those of accounts without a quota can't start."
            for name in sorted(views.keys() - set(managed))
            if _bills(views[name])
        ),
    )


def _counts_memory(config: Mapping[str, str]) -> bool:
    """Whether memory is allotted, and slurm.conf gives no default for all partitions."""
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


def _weight_faults(partition: PartitionView, costs: Mapping[str, int]) -> Iterable[str]:
    """Billing counts millislices only if each type weighs its cost and nothing else weighs."""
    weights = partition.billing_weights
    where = f"TRESBillingWeights of partition {partition.name}"
    expected = {f"gres/gpu:{kind}".lower(): cost for kind, cost in costs.items()}
    for tres, cost in expected.items():
        if weights.get(tres) != cost:
            yield f"{where}: {tres} is {_number(weights.get(tres))}, not {cost}."
    for tres, weight in _others(weights, expected):
        yield f"{where}: {tres} is {_number(weight)}, not 0: billing counts more than GPUs."


def _bills(partition: PartitionView) -> bool:
    # Without a weight of their own, Slurm bills CPUs.
    return not partition.billing_weights or any(partition.billing_weights.values())


def _others(weights: Mapping[str, float], expected: Collection[str]) -> list[tuple[str, float]]:
    # Without a weight of their own, Slurm bills CPUs.
    others = {"cpu": 1.0} if not weights else {}
    others.update({tres: weight for tres, weight in weights.items() if tres not in expected})
    return [(tres, weight) for tres, weight in others.items() if weight]


def _number(weight: float | None) -> str:
    return "not set" if weight is None else f"{weight:g}"
