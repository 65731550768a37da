"""Makes the lines that slurm.conf needs for the quotas to hold, and finds what is missing."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, setting, warning
from slicewise.cluster.language.gpus.mig_names import has_mig_size
from slicewise.cluster.language.gres import SHARED, tres_name
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.language.slurm.values import has_default_memory
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS
from slicewise.slurm_plugin.rules.slurm_config.conf_words import (
    conf_line,
    conf_words,
    not_of_partition,
    partition_words,
)
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_ENFORCED = ("associations", "limits", "qos")
_COUNTED_ANYWAY = frozenset({"cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"})
_BATCH_SCHED_DELAY = "3"
"""Slurm's default, in seconds."""
_BF_WINDOW_MIN, _MOST_BF_WINDOW_MIN = 1440, 43_200
"""Slurm's default of bf_window and the most that it takes, in minutes."""
_NO_PREEMPTION = "lenders wait for borrowed jobs to end"
PREEMPT_QOS = "preempt/qos"
_MAX_TRES = "MAX_TRES"
_PREEMPT_MODES = frozenset({"REQUEUE", "CANCEL", "SUSPEND"})
_SHOWN_WEIGHTS = 3
_BACKFILL, _MINUTE_S = "sched/backfill", 60
_YOUNGEST, _SCHEDULER = "preempt_youngest_first", "SchedulerParameters"


def conf_lines(
    partitions: Iterable[str], costs: Mapping[str, int], billing: BillingUnit
) -> tuple[str, ...]:
    """Lines for slurm.conf. ``costs`` are millislices by GRES type.

    Words for a partition are comments: a site adds them to the line that it has. slurmctld ends if
    a partition names a QOS that does not exist.
    """
    weights = billing_weights(costs, billing)
    return (
        f"AccountingStorageEnforce={','.join(_ENFORCED)}",
        f"AccountingStorageTRES={accounting_tres(costs)}",
        f"PreemptType={PREEMPT_QOS}",
        "# keep the PreemptMode that you have, unless it is OFF",
        "PreemptMode=REQUEUE",
        *(
            partition_words(name, f'QOS={GATE_QOS} TRESBillingWeights="{weights}"').line
            for name in partitions
        ),
    )


def billing_weights(costs: Mapping[str, int], billing: BillingUnit) -> str:
    """``TRESBillingWeights`` of a managed partition, with which a job's billing is its slices."""
    weights = (
        f"{tres_name(gres_type).replace('gres', 'GRES')}={billing.held(cost)}"
        for gres_type, cost in costs.items()
    )
    return ",".join(("CPU=0", "Mem=0", *weights))


def accounting_tres(types: Iterable[str]) -> str:
    """``AccountingStorageTRES``: GPUs in total and of each type."""
    return ",".join(_counted(types))


def conf_findings(
    config: Mapping[str, str],
    partitions: Iterable[PartitionView],
    managed: Sequence[str],
    costs: Mapping[str, int],
    billing: BillingUnit,
    *,
    nodes: Collection[NodeView] = (),
) -> tuple[Finding, ...]:
    """What the running slurmctld lacks of these settings."""
    return (
        *config_findings(config, costs, partitions, managed),
        *partition_findings(config, partitions, managed, costs, billing, nodes=nodes),
    )


def partition_findings(
    config: Mapping[str, str],
    partitions: Iterable[PartitionView],
    managed: Sequence[str],
    costs: Mapping[str, int],
    billing: BillingUnit,
    *,
    nodes: Collection[NodeView] = (),
) -> Iterator[Finding]:
    """What the managed partitions lack of these settings, on these nodes."""
    views = {view.name: view for view in partitions}
    for name in managed:
        if name not in views:
            yield error(
                Code.CONF_DIFFERS,
                f"There is no partition {name}",
                advice="Name the partitions of your GPUs in [cluster] partitions.",
            )
    own = [views[name] for name in managed if name in views]
    yield from _weight_findings(own, costs, billing)
    if _counts_memory(config):
        bare = (view for view in own if not view.has_default_memory)
        yield from (_memory_finding(view, nodes) for view in bare)
    for view in own:
        yield from _gate_findings(view)


def _memory_finding(partition: PartitionView, nodes: Iterable[NodeView]) -> Finding:
    where = frozenset({partition.name})
    shares_mib = (_memory_per_gpu_mib(node) for node in nodes if node.is_in(where))
    least_mib = min(filter(None, shares_mib), default=0)
    words = (partition_words(partition.name, f"DefMemPerGPU={least_mib}"),) if least_mib else ()
    return warning(
        Code.PARTITION_MEMORY,
        f"Partition {partition.name} gives a job that asks for no memory all that its node has",
        "the node's other GPUs lie idle",
        *words,
        advice="Set DefMemPerGPU or DefMemPerCPU on it, to no more than each node has for each.",
    )


def _memory_per_gpu_mib(node: NodeView) -> int:
    """What a node has for each of its GPUs and instances; 0 if it has none, or nobody knows."""
    gpus = node.untyped_gpus + sum(n for gres_type, n in node.gpus.items() if not is_pad(gres_type))
    return node.memory_mib // gpus if gpus else 0


def slow_starts(config: Mapping[str, str], window_min: int | None = None) -> Iterator[Finding]:
    """Say how long slurmctld may wait before it looks at a slot that was released.

    Slurm starts no batch job right at its submission or release, but within ``batch_sched_delay``.
    ``window_min`` is what ``wanted_window_min`` found.
    """
    delay = _scheduler_values(config).get("batch_sched_delay", _BATCH_SCHED_DELAY)
    if delay != "0":
        yield hint(
            Code.CONF_SLOW_START,
            f"SchedulerParameters has batch_sched_delay={delay} (Slurm's default is"
            f" {_BATCH_SCHED_DELAY})",
            "a replica that is released may wait as many seconds before Slurm looks at it, also"
            " where GPUs are free",
            _scheduler_line(config, window_min),
            advice="Where services shall wake sooner: 0.",
        )


def preempts_youngest_first(config: Mapping[str, str]) -> bool:
    """Whether of jobs that may be preempted those go first that started last.

    PreemptParameters may say so since Slurm 23.02.
    """
    scheduler, preempt = (
        config.get(key, "").lower() for key in ("SchedulerParameters", "PreemptParameters")
    )
    return _YOUNGEST in scheduler or "youngest_first" in preempt


def longest_lose(config: Mapping[str, str], window_min: int | None = None) -> Iterator[Finding]:
    """Say if jobs on borrowed quota lose more work to lenders than they must.

    ``window_min`` is what ``wanted_window_min`` found.
    """
    if config.get("PreemptType") == PREEMPT_QOS and not preempts_youngest_first(config):
        yield hint(
            Code.CONF_PREEMPT_ORDER,
            f"SchedulerParameters lacks {_YOUNGEST}",
            "of jobs on borrowed quota Slurm ends for a lender those of the fewest nodes, and of"
            " these the ones with the lowest ids, which have run longest and lose most work",
            _scheduler_line(config, window_min),
            advice="It holds for all preemption of the cluster. The line has all that is advised"
            " for SchedulerParameters. Before 23.11 slurmctld reads it at its start only.",
        )


def wanted_window_min(
    config: Mapping[str, str], partitions: Iterable[PartitionView], managed: Collection[str]
) -> int | None:
    """The bf_window that backfill needs to keep nodes for every job, in minutes; None if it has it.

    Nodes are kept for a job only if jobs that run there end by their limits within the window. A
    partition without MaxTime says nothing of the limits of its jobs, and is left out.
    """
    if config.get("SchedulerType", _BACKFILL) != _BACKFILL:
        return None
    limits_s = [view.max_time_s or 0 for view in partitions if view.name in managed]
    wanted_min = min(_MOST_BF_WINDOW_MIN, ceil(max(limits_s, default=0) / _MINUTE_S))
    return wanted_min if wanted_min > _window_min(config) else None


def _window_min(config: Mapping[str, str]) -> int:
    minutes = _scheduler_values(config).get("bf_window", "")
    return int(minutes) if minutes.isdecimal() else _BF_WINDOW_MIN


def short_window(config: Mapping[str, str], window_min: int | None) -> Iterator[Finding]:
    """Say if backfill looks less far ahead than jobs may run: what ``wanted_window_min`` found."""
    if window_min is not None:
        yield hint(
            Code.CONF_BACKFILL_WINDOW,
            f"Backfill plans {_window_min(config)} minutes ahead (bf_window), and jobs may run"
            " longer (MaxTime)",
            "Slurm keeps no nodes for a job that is first in the queue while those nodes are held"
            " beyond the window: large jobs wait for days behind small ones",
            _scheduler_line(config, window_min),
            advice="Small jobs may wait longer then. The line has all that is advised for"
            " SchedulerParameters.",
        )


def _scheduler_values(config: Mapping[str, str]) -> Mapping[str, str]:
    words = conf_words(config, _SCHEDULER)
    return dict(word.split("=", 1) for word in words if "=" in word)


def _scheduler_line(config: Mapping[str, str], window_min: int | None) -> Mend:
    """What a site has beside all that is advised: Slurm takes one such line only."""
    window = () if window_min is None else (f"bf_window={window_min}",)
    changed = ("batch_sched_delay=", *(("bf_window=",) if window else ()))
    kept = [word for word in conf_words(config, _SCHEDULER) if not word.startswith(changed)]
    youngest = () if preempts_youngest_first(config) else (_YOUNGEST,)
    return conf_line(_SCHEDULER, (*kept, "batch_sched_delay=0", *window, *youngest))


def closed_to_qos(
    partitions: Iterable[PartitionView], managed: Collection[str], ours: Collection[str]
) -> tuple[Finding, ...]:
    """Managed partitions that do not accept all QOS of ``ours``."""
    findings: list[Finding] = []
    for view in partitions:
        if view.name not in managed:
            continue
        if view.allow_qos is not None and (lacking := sorted(set(ours) - view.allow_qos)):
            findings.append(
                error(
                    Code.PARTITION_GATE,
                    f"Partition {view.name} has AllowQos without {', '.join(lacking)}",
                    "their jobs do not start there",
                    not_of_partition(view.name, "AllowQos"),
                    advice="Add them, or take AllowQos away: the gate keeps all other QOS out.",
                )
            )
        if denied := sorted(view.deny_qos & set(ours)):
            kept = ",".join(sorted(view.deny_qos - set(ours)))
            mend = (
                partition_words(view.name, f"DenyQos={kept}, in place of its own")
                if kept
                else not_of_partition(view.name, "DenyQos")
            )
            findings.append(
                error(
                    Code.PARTITION_GATE,
                    f"Partition {view.name} has DenyQos with {', '.join(denied)}",
                    "their jobs do not start there",
                    mend,
                    advice="Take them out of it.",
                )
            )
    return tuple(findings)


def price_findings(
    nodes: Iterable[NodeView], partitions: frozenset[str], costs: Mapping[str, int]
) -> tuple[Finding, ...]:
    """GPUs of managed partitions that have no price, one finding for each type."""
    unpriced = defaultdict[str, list[str]](list)
    for node in nodes:
        if node.is_in(partitions):
            kinds = [
                f"gpu:{gres_type}"
                for gres_type, count in node.gpus.items()
                if count and gres_type not in costs and not is_pad(gres_type)
            ]
            kinds += [name for name, count in node.shared.items() if count and name not in costs]
            for gres_type in (*kinds, *(["gpu"] if node.untyped_gpus else [])):
                unpriced[gres_type].append(node.name)
    return tuple(_unpriced(gres_type, names) for gres_type, names in sorted(unpriced.items()))


def _unpriced(gres_type: str, nodes: Sequence[str]) -> Finding:
    more = len(nodes) - 1
    has = f"{nodes[0]} and {more} more node{'s' * (more > 1)} have" if more else f"{nodes[0]} has"
    if gres_type == "gpu":
        return error(
            Code.GPU_PRICE,
            f"{has} GPUs without a type",
            "Slurm bills by type, so they are not charged and no quota counts them",
            advice="Give them one, as in Gres=gpu:a100:8, and name it in [gpus] of slicewise.toml:"
            " whole.",
        )
    if gres_type in SHARED:
        return error(
            Code.GPU_PRICE,
            f"{has} GPUs that jobs share by {gres_type}, which has no price",
            "its jobs are refused, but where slicewise.lua does not run they are neither charged"
            " nor counted",
            Mend(Place.SETTINGS, f"[shared] {gres_type}_millislices = 875"),
            advice=f"Give {gres_type} a price in [shared] of slicewise.toml, or take it out of"
            " Gres of the nodes.",
        )
    name = gres_type.removeprefix("gpu:")
    return error(
        Code.GPU_PRICE,
        f"{has} {gres_type}, which has no price",
        "it is not charged and no quota counts it",
        setting('gpus."MODEL"', f'types = ["{name}"]'),
        advice="Name it in [gpus] of slicewise.toml: types"
        + ("." if has_mig_size(name) else ", or whole for GPUs that are not cut."),
    )


def _counts_memory(config: Mapping[str, str]) -> bool:
    """Whether Slurm allots memory, and slurm.conf gives no default for all partitions."""
    is_allotted = "MEMORY" in config.get("SelectTypeParameters", "").upper()
    return is_allotted and not has_default_memory(config)


def config_findings(
    config: Mapping[str, str],
    costs: Mapping[str, int],
    partitions: Iterable[PartitionView] = (),
    managed: Collection[str] = (),
) -> Iterator[Finding]:
    """What slurm.conf lacks for limits to hold, apart from its managed partitions."""
    enforced = _lacking(_ENFORCED, config, "AccountingStorageEnforce")
    if enforced:
        yield error(
            Code.CONF_LIMITS,
            f"AccountingStorageEnforce lacks {', '.join(enforced)}",
            "no limit is enforced",
            _longer(config, "AccountingStorageEnforce", enforced),
        )
    counted = _lacking(_counted(costs), config, "AccountingStorageTRES")
    if counted:
        yield error(
            Code.CONF_LIMITS,
            f"AccountingStorageTRES lacks {', '.join(counted)}",
            "such GPUs are not charged",
            _longer(config, "AccountingStorageTRES", counted),
        )
    yield from _preemption(config)
    yield from _max_tres(config, [view for view in partitions if view.name not in managed])


def _preemption(config: Mapping[str, str]) -> Iterator[Finding]:
    """Say if nothing is preempted by QOS.

    What happens to preempted jobs is a matter of their QOS, and those of borrowed quota say it: so
    slurm.conf's mode stays as it is, but for OFF, with which Slurm takes no PreemptType.
    """
    kind, mode = config.get("PreemptType", ""), conf_words(config, "PreemptMode")
    kept = [word for word in mode if word.upper() != "OFF"]
    is_off = not {word.upper() for word in kept} & _PREEMPT_MODES
    modes = [conf_line("PreemptMode", (*kept, "REQUEUE"))] if is_off else []
    if kind != PREEMPT_QOS:
        ends = (
            " Partitions of a higher PriorityTier then preempt nobody any more."
            if kind == "preempt/partition_prio"
            else ""
        )
        yield error(
            Code.CONF_PREEMPT,
            f"PreemptType is not {PREEMPT_QOS}",
            _NO_PREEMPTION,
            Mend(Place.SLURM_CONF, f"PreemptType={PREEMPT_QOS}"),
            *modes,
            advice="QOS of the site that have a Preempt list preempt from then on; what becomes of"
            f" the jobs that they end is PreemptMode of these jobs' QOS, else slurm.conf's.{ends}",
        )
    elif is_off:
        yield error(Code.CONF_PREEMPT, "PreemptMode is OFF", _NO_PREEMPTION, *modes)


def takes_greatest(config: Mapping[str, str]) -> bool:
    """Whether a job is billed for the greatest of its weighed resources, and not for their sum."""
    return _MAX_TRES in {flag.upper() for flag in conf_words(config, "PriorityFlags")}


def _max_tres(config: Mapping[str, str], others: Sequence[PartitionView]) -> Iterator[Finding]:
    """Say if a job is billed for one of its types only, and what it does elsewhere to mend that."""
    if not takes_greatest(config):
        return
    kept = [flag for flag in conf_words(config, "PriorityFlags") if flag.upper() != _MAX_TRES]
    yield error(
        Code.CONF_LIMITS,
        "PriorityFlags has MAX_TRES",
        "a job is billed for one of its GPU types only",
        conf_line("PriorityFlags", kept),
        advice=_without_max_tres(others),
    )


def _without_max_tres(others: Iterable[PartitionView]) -> str:
    """What other partitions bill without MAX_TRES: the sum in place of the greatest part."""
    summed = [
        f"{view.name} ({', '.join(f'{t}={_number(t, weight)}' for t, weight in several)}; up to"
        f" {len(several)} times as much)"
        for view in others
        if len(several := [(t, w) for t, w in view.billing_weights.items() if w]) > 1
    ]
    if not summed:
        return "Other partitions bill as before: each has one weight at most."
    return (
        "Other partitions then bill the sum of their weights in place of the greatest:"
        f" {', '.join(summed)}. Lower these weights, and raise what limits their billing, with it."
        " Slurm 25.05 and newer have MAX_TRES_GRES, which may stand in its place: GPUs are added"
        " to the greatest of CPUs and memory."
    )


def _longer(config: Mapping[str, str], key: str, lacking: Sequence[str]) -> Mend:
    """Return the setting's line with what it lacks behind what it has.

    What Slurm counts by itself is left out.
    """
    own = [word for word in conf_words(config, key) if word.lower() not in _COUNTED_ANYWAY]
    return conf_line(key, (*own, *lacking))


def _lacking(needed: Iterable[str], config: Mapping[str, str], key: str) -> list[str]:
    has = {word.lower() for word in conf_words(config, key)}
    return [word for word in needed if word.lower() not in has]


def _counted(costs: Iterable[str]) -> tuple[str, ...]:
    return ("gres/gpu", *map(tres_name, costs))


def _weight_findings(
    partitions: Iterable[PartitionView], costs: Mapping[str, int], billing: BillingUnit
) -> Iterator[Finding]:
    """Billing counts slices only if each type weighs its cost and nothing else weighs.

    One finding for all partitions that are wrong in the same way.
    """
    expected = {
        tres_name(gres_type).lower(): billing.held(cost) for gres_type, cost in costs.items()
    }
    words = f'TRESBillingWeights="{billing_weights(costs, billing)}"'
    by_scale = defaultdict[Fraction, list[str]](list)
    wrong: list[str] = []
    differences: dict[str, None] = {}
    for view in partitions:
        weights = view.billing_weights
        scales = {Fraction(weights.get(tres, 0)) / due for tres, due in expected.items()}
        scale = scales.pop() if len(scales) == 1 else Fraction(1)
        texts = _differences(weights, expected)
        if scale not in {0, 1}:
            by_scale[scale].append(view.name)
            texts = [text for text in texts if text.endswith("not 0")]
        if texts:
            wrong.append(view.name)
            differences |= dict.fromkeys(texts)
    for scale, names in by_scale.items():
        yield error(
            Code.CONF_LIMITS,
            f"{_weights_of(names)} are those of billing_per_slice = {billing.per_slice * scale},"
            f" and [cluster] of slicewise.toml says {billing.per_slice}",
            f"a job counts {scale} times what it should",
            *(partition_words(name, words) for name in names),
            advice="Write the line of slicewise compile --slurm-conf into slurm.conf, or correct "
            "the setting.",
        )
    if wrong:
        shown = "; ".join([*differences][:_SHOWN_WEIGHTS])
        more = len(differences) - _SHOWN_WEIGHTS
        yield error(
            Code.CONF_LIMITS,
            f"{_weights_of(wrong)}: {shown}{f'; and {more} more' if more > 0 else ''}",
            "billing does not count slices",
            *(partition_words(name, words) for name in wrong),
        )


def _weights_of(names: Sequence[str]) -> str:
    return f"TRESBillingWeights of partition{'s' * (len(names) > 1)} {', '.join(names)}"


def _differences(weights: Mapping[str, float], expected: Mapping[str, int]) -> list[str]:
    """What weighs too little or too much, as text."""
    return [
        *(
            f"{tres} is {_number(tres, weights.get(tres))}, not {due}"
            for tres, due in expected.items()
            if weights.get(tres) != due
        ),
        *(f"{tres} is {_number(tres, of)}, not 0" for tres, of in _others(weights, expected)),
    ]


def _gate_findings(partition: PartitionView) -> Iterator[Finding]:
    if partition.qos != GATE_QOS:
        yield error(
            Code.PARTITION_GATE,
            f"Partition {partition.name} has no QOS={GATE_QOS} on its line",
            "no quota limits jobs there in QOS other than Slicewise's",
            partition_words(partition.name, f"QOS={GATE_QOS}"),
            advice="Add it once sacctmgr shows that QOS: slurmctld exits if the QOS does not"
            " exist.",
        )


def _others(weights: Mapping[str, float], expected: Collection[str]) -> list[tuple[str, float]]:
    # Slurm bills CPUs for a partition without any weights.
    others = {"cpu": 1.0} if not weights else {}
    others.update({tres: weight for tres, weight in weights.items() if tres not in expected})
    return [(tres, weight) for tres, weight in others.items() if weight]


def _number(tres: str, weight: float | None) -> str:
    """As slurm.conf has it: that of memory, which is known per MiB, per GiB."""
    if weight is None:
        return "not set"
    return f"{weight * 1024:g}G" if tres == "mem" and weight else f"{float(weight):g}"
