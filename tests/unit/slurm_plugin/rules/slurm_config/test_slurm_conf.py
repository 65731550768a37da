"""Tests the lines for slurm.conf, and warnings of missing or wrong ones."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from builders.nodes import a_node

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import (
    closed_to_qos,
    conf_findings,
    conf_lines,
    longest_lose,
    price_findings,
    short_window,
    slow_starts,
    wanted_window_min,
)

GATE = "slicewise_gate"
COSTS = {"1g.10gb": 1000, "3g.40gb": 3500}
WEIGHTS = {"cpu": 0.0, "mem": 0.0, "gres/gpu:1g.10gb": 1000.0, "gres/gpu:3g.40gb": 3500.0}
VIEWS = [PartitionView("gpu", WEIGHTS, GATE)]
CONFIG = {
    "AccountingStorageEnforce": "associations,limits,qos,safe",
    "AccountingStorageTRES": "cpu,mem,billing,gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
}


def conf_faults(
    config: Mapping[str, str],
    partitions: list[PartitionView],
    managed: list[str],
    costs: dict[str, int],
    billing: BillingUnit,
) -> tuple[str, ...]:
    found = conf_findings(config, partitions, managed, costs, billing)
    return tuple(one.text for one in found)


def faults(config: dict[str, str] | None = None, weights: dict[str, float] | None = None):
    partitions = [PartitionView("gpu", WEIGHTS if weights is None else weights, GATE)]
    return conf_faults({**CONFIG, **(config or {})}, partitions, ["gpu"], COSTS, MILLISLICES)


def test_the_lines():
    weights = '"CPU=0,Mem=0,GRES/gpu:1g.10gb=1000,GRES/gpu:3g.40gb=3500"'
    assert conf_lines(["gpu", "long"], COSTS, MILLISLICES) == (
        "AccountingStorageEnforce=associations,limits,qos",
        "AccountingStorageTRES=gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
        "PreemptType=preempt/qos",
        "# keep the PreemptMode that you have, unless it is OFF",
        "PreemptMode=REQUEUE",
        *(
            f"# add to the line of partition {name}: QOS=slicewise_gate"
            f" TRESBillingWeights={weights}"
            for name in ("gpu", "long")
        ),
    )


def test_a_cluster_that_has_them_is_all_right():
    assert faults() == ()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"AccountingStorageEnforce": "associations"}, "lacks limits, qos"),
        ({"AccountingStorageTRES": "cpu,gres/gpu,gres/gpu:3g.40gb"}, "lacks gres/gpu:1g.10gb:"),
        ({"PreemptType": "preempt/none"}, "PreemptType is not preempt/qos"),
        ({"PreemptMode": "OFF"}, "PreemptMode is OFF"),
        ({"PriorityFlags": "MAX_TRES"}, "MAX_TRES"),
    ],
)
def test_what_slurm_conf_lacks_is_said(config: dict[str, str], says: str):
    (fault,) = faults(config)
    assert says in fault


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({**WEIGHTS, "gres/gpu:1g.10gb": 1.0}, "gres/gpu:1g.10gb is 1, not 1000"),
        ({"gres/gpu:1g.10gb": 1000.0}, "gres/gpu:3g.40gb is not set, not 3500"),
        ({**WEIGHTS, "cpu": 1.0}, "cpu is 1, not 0"),
        ({**WEIGHTS, "gres/gpu": 7000.0}, "gres/gpu is 7000, not 0"),
    ],
)
def test_wrong_weights_are_said(weights: dict[str, float], says: str):
    (fault,) = faults(weights=weights)
    assert says in fault


@pytest.mark.parametrize(
    ("per_slice", "weights"),
    [
        ("8", "GRES/gpu:1g.10gb=8,GRES/gpu:3g.40gb=28"),
        ("2", "GRES/gpu:1g.10gb=2,GRES/gpu:3g.40gb=7"),
    ],
)
def test_the_lines_in_a_sites_own_unit(per_slice: str, weights: str):
    line = conf_lines(["gpu"], COSTS, BillingUnit(Fraction(per_slice)))[-1]
    assert line.endswith(f'TRESBillingWeights="CPU=0,Mem=0,{weights}"')


def test_weights_in_another_unit_than_the_settings_are_said_once():
    views = [PartitionView("gpu", WEIGHTS, GATE)]
    (fault,) = conf_faults(CONFIG, views, ["gpu"], COSTS, BillingUnit(Fraction(8)))
    assert fault.startswith(
        "TRESBillingWeights of partition gpu are those of billing_per_slice = 1000, and [cluster] "
        "of slicewise.toml says 8: a job counts 125 times what it should. "
    )
    ours = {"gres/gpu:1g.10gb": 8.0, "gres/gpu:3g.40gb": 28.0}
    views = [PartitionView("gpu", ours, GATE)]
    assert conf_faults(CONFIG, views, ["gpu"], COSTS, BillingUnit(Fraction(8))) == ()
    (fault,) = conf_faults(CONFIG, views, ["gpu"], COSTS, MILLISLICES)
    assert "billing_per_slice = 8, and" in fault
    assert "a job counts 1/125 times what it should" in fault


def test_without_weights_slurm_bills_processors():
    (fault,) = faults(weights={})
    assert "gres/gpu:3g.40gb is not set, not 3500; cpu is 1, not 0: billing does not" in fault


def test_weights_are_one_finding_however_many_types_and_partitions():
    costs = {f"{slices}g.{10 * slices}gb": 1000 * slices for slices in (1, 2, 3, 4, 7)}
    views = [PartitionView(name, {"cpu": 1.0}, GATE) for name in ("a", "b", "c")]
    config = {**CONFIG, "AccountingStorageTRES": ",".join(f"gres/gpu:{kind}" for kind in costs)}
    config["AccountingStorageTRES"] += ",gres/gpu"
    (found,) = conf_findings(config, views, ["a", "b", "c"], costs, MILLISLICES)
    assert found.what.startswith("TRESBillingWeights of partitions a, b, c: gres/gpu:1g.10gb is")
    assert found.what.endswith("; and 3 more")
    assert len(found.mends) == len(views)


@pytest.mark.parametrize(
    ("flags", "mend"),
    [
        ("MAX_TRES", "# delete each line of PriorityFlags"),
        ("max_tres", "# delete each line of PriorityFlags"),
        (" MAX_TRES , FAIR_TREE", "PriorityFlags=FAIR_TREE"),
        ("ACCRUE_ALWAYS,MAX_TRES,FAIR_TREE", "PriorityFlags=ACCRUE_ALWAYS,FAIR_TREE"),
        ("MAX_TRES_GRES", None),
        ("(null)", None),
    ],
)
def test_a_setting_that_has_no_value_left_is_taken_out(flags: str, mend: str | None):
    """A key without a value ends slurmctld, every slurmd and every command."""
    found = conf_findings({**CONFIG, "PriorityFlags": flags}, VIEWS, ["gpu"], COSTS, MILLISLICES)
    assert [one.line for finding in found for one in finding.mends] == ([mend] if mend else [])


def test_a_setting_keeps_what_the_site_has_beside_what_it_lacks():
    own = {"AccountingStorageEnforce": "safe,limits", "AccountingStorageTRES": "cpu,gres/nic"}
    found = conf_findings({**CONFIG, **own}, VIEWS, ["gpu"], COSTS, MILLISLICES)
    assert [one.line for finding in found for one in finding.mends] == [
        "AccountingStorageEnforce=safe,limits,associations,qos",
        "AccountingStorageTRES=gres/nic,gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
    ]


def test_what_other_partitions_bill_without_max_tres_is_said():
    others = [
        PartitionView("cpu", {"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 0.0}, ""),
        PartitionView("long", {"cpu": 2.0}, ""),
    ]
    config = {**CONFIG, "PriorityFlags": "MAX_TRES"}
    (found,) = conf_findings(config, [*VIEWS, *others], ["gpu"], COSTS, MILLISLICES)
    assert "the sum of their weights in place of the greatest: cpu (cpu=1, mem=0.25G; up to 2" in (
        found.advice
    )
    assert "long" not in found.advice
    (found,) = conf_findings(config, [*VIEWS, others[1]], ["gpu"], COSTS, MILLISLICES)
    assert found.advice.startswith("Other partitions bill as before")


def test_another_partition_may_bill_what_it_likes():
    views = [PartitionView("gpu", WEIGHTS, GATE), PartitionView("cpu", {"cpu": 1.0}, "site")]
    assert conf_faults(CONFIG, views, ["gpu"], COSTS, MILLISLICES) == ()


@pytest.mark.parametrize("qos", ["", "site"])
def test_a_partition_without_the_gate_is_said(qos: str):
    (fault,) = conf_faults(
        CONFIG, [PartitionView("gpu", WEIGHTS, qos)], ["gpu"], COSTS, MILLISLICES
    )
    assert fault.startswith("Partition gpu has no QOS=slicewise_gate on its line")


def test_a_partition_that_does_not_take_our_qos_is_said():
    ours = {"slicewise_a", "slicewise_a_borrowed"}
    views = [
        PartitionView("all", {}, GATE),
        PartitionView("some", {}, GATE, allow_qos=frozenset({"normal", "slicewise_a"})),
        PartitionView("both", {}, GATE, allow_qos=frozenset({*ours, "normal"})),
        PartitionView("cpu", {}, "", allow_qos=frozenset({"normal"}), deny_qos=frozenset(ours)),
        PartitionView("not", {}, GATE, deny_qos=frozenset({"normal", "slicewise_a"})),
    ]
    lacking, denied = (
        one.text for one in closed_to_qos(views, {"all", "some", "both", "not"}, ours)
    )
    assert lacking.startswith("Partition some has AllowQos without slicewise_a_borrowed:")
    assert denied.startswith("Partition not has DenyQos with slicewise_a:")


def test_a_partition_that_is_not_there_is_said():
    (fault,) = conf_faults(CONFIG, [], ["gpu"], COSTS, MILLISLICES)
    assert "no partition gpu" in fault


def test_a_partition_without_default_memory_is_said_where_memory_is_allotted():
    views = [PartitionView("gpu", WEIGHTS, GATE, has_default_memory=False)]
    allots = {**CONFIG, "SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerNode": "UNLIMITED"}
    (fault,) = conf_faults(allots, views, ["gpu"], COSTS, MILLISLICES)
    assert "Partition gpu gives a job that asks for no memory all" in fault
    for config in (
        CONFIG,
        {**allots, "DefMemPerCPU": "100"},
        {**allots, "JobDefaults": "DefMemPerGPU=9"},
    ):
        assert conf_faults(config, views, ["gpu"], COSTS, MILLISLICES) == ()


def test_the_default_memory_that_is_proposed_is_what_the_poorest_node_has_for_a_gpu():
    """A larger one, and no job that names no memory would ever fit beside others."""
    view = PartitionView("gpu", WEIGHTS, GATE, has_default_memory=False)
    config = {**CONFIG, "SelectTypeParameters": "CR_CORE_MEMORY"}
    where = frozenset({"gpu"})
    nodes = [
        a_node("a", gpus={"1g.10gb": 7, "a100": 2, "pad3": 1}, partitions=where),
        a_node("b", gpus={}, partitions=where, untyped_gpus=4),
        a_node("elsewhere", gpus={"a100": 9}, partitions=frozenset({"old"})),
        a_node("cpu", gpus={}, partitions=where),
    ]
    nodes = [replace(node, memory_mib=4000) for node in nodes]
    for shown, line in (
        (nodes, ["# add to the line of partition gpu: DefMemPerGPU=444"]),
        (nodes[1:], ["# add to the line of partition gpu: DefMemPerGPU=1000"]),
        (nodes[2:], []),
        ([replace(node, memory_mib=0) for node in nodes], []),
    ):
        (found,) = conf_findings(config, [view], ["gpu"], COSTS, MILLISLICES, nodes=shown)
        assert [mend.line for mend in found.mends] == line


def test_gpus_without_a_price_are_said_once_for_each_type():
    def node(name: str, gpus: dict[str, int], partition: str = "gpu", untyped: int = 0) -> NodeView:
        where = frozenset({partition})
        return a_node(name, gpus=gpus, partitions=where, untyped_gpus=untyped)

    nodes = [
        node("a", {"1g.10gb": 3, "3g.40gb": 1, "pad4": 3, "gone": 0}),
        node("b", {"a100": 8}),
        node("c", {"a100": 8, "l40s": 1}),
        node("d", {"h200": 8}, partition="other"),
        node("e", {}, untyped=8),
    ]
    found = price_findings(nodes, frozenset({"gpu"}), COSTS)
    untyped, a100, l40s = (one.text for one in found)
    assert untyped.startswith("e has GPUs without a type")
    assert a100.startswith("b and 1 more node have gpu:a100, which has no price")
    assert l40s.startswith("c has gpu:l40s, which has no price")
    assert price_findings(nodes[:1], frozenset({"gpu"}), COSTS) == ()
    priced = COSTS | {"a100": 7000, "l40s": 3500}
    assert price_findings(nodes[1:4], frozenset({"gpu"}), priced) == ()


@pytest.mark.parametrize(
    ("parameters", "delay"),
    [
        ("(null)", "3"),
        ("bf_interval=5,sched_interval=5,batch_sched_delay=1", "1"),
        ("bf_continue,default_queue_depth=100", "3"),
        ("bf_continue,batch_sched_delay=0", None),
    ],
)
def test_how_late_slurm_looks_at_a_released_replica(parameters: str, delay: str | None) -> None:
    found = slow_starts({"SchedulerParameters": parameters})
    assert [f"batch_sched_delay={delay} " in one.text for one in found] == (
        [] if delay is None else [True]
    )


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        ({"SchedulerParameters": "(null)"}, ["batch_sched_delay=0,preempt_youngest_first"]),
        (
            {"SchedulerParameters": "defer,batch_sched_delay=3", "PreemptParameters": "(null)"},
            ["defer,batch_sched_delay=0,preempt_youngest_first"],
        ),
        ({"SchedulerParameters": "bf_continue,Preempt_Youngest_First"}, []),
        ({"PreemptParameters": "send_user_signal,youngest_first"}, []),
        ({"PreemptType": "preempt/none"}, []),
    ],
)
def test_who_has_run_longest_is_not_to_go_first(config: dict[str, str], lines: list[str]) -> None:
    found = longest_lose({"PreemptType": "preempt/qos", **config})
    mends = [mend.line for one in found for mend in one.mends]
    assert mends == [f"SchedulerParameters={line}" for line in lines]


@pytest.mark.parametrize(
    ("config", "limits_s", "wanted_min"),
    [
        ({}, [7 * 86_400, 3600], 10_080),
        ({"SchedulerParameters": "bf_window=10079"}, [7 * 86_400], 10_080),
        ({"SchedulerParameters": "bf_window=10080"}, [7 * 86_400], None),
        ({"SchedulerParameters": "bf_window=x"}, [86_430], 1441),
        ({}, [86_400], None),
        ({}, [90 * 86_400], 43_200),
        ({"SchedulerParameters": "bf_window=43200"}, [90 * 86_400], None),
        ({}, [None], None),
        ({}, [], None),
        ({"SchedulerType": "sched/builtin"}, [7 * 86_400], None),
    ],
)
def test_the_window_of_backfill_reaches_as_far_as_jobs_may_run(
    config: dict[str, str], limits_s: list[int | None], wanted_min: int | None
) -> None:
    views = [PartitionView("gpu", {}, "", max_time_s=limit_s) for limit_s in limits_s]
    other = PartitionView("cpu", {}, "", max_time_s=20 * 86_400)
    assert wanted_window_min(config, [*views, other], ["gpu"]) == wanted_min


def test_the_line_for_a_short_window_has_all_that_is_advised():
    config = {"SchedulerParameters": "bf_window=60,bf_continue", "PreemptType": "preempt/qos"}
    found = [*short_window(config, 2880), *slow_starts(config, 2880), *longest_lose(config, 2880)]
    line = "bf_continue,batch_sched_delay=0,bf_window=2880,preempt_youngest_first"
    assert [mend.line for one in found for mend in one.mends] == [f"SchedulerParameters={line}"] * 3
    assert "60 minutes ahead" in found[0].text
    assert not list(short_window(config, None))
    (kept,) = slow_starts(config)
    assert "bf_window=60" in kept.mends[0].line


def test_the_lines_of_shared_gpus():
    lines = conf_lines(["gpu"], {**COSTS, "shard": 875}, MILLISLICES)
    assert lines[1].endswith(",gres/gpu:3g.40gb,gres/shard")
    assert lines[-1].endswith(',GRES/gpu:3g.40gb=3500,GRES/shard=875"')
    views = [PartitionView("gpu", WEIGHTS, GATE)]
    (fault,) = conf_faults(
        {
            **CONFIG,
            "AccountingStorageTRES": "gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb,gres/shard",
        },
        views,
        ["gpu"],
        {**COSTS, "shard": 875},
        MILLISLICES,
    )
    assert "gres/shard is not set, not 875" in fault


def test_shared_gpus_without_a_price_are_said():
    node = a_node("a", gpus={"1g.10gb": 1}, shared={"shard": 8})
    (fault,) = price_findings([node], frozenset({"gpu"}), COSTS)
    assert fault.code == "SW-GPU-PRICE"
    assert "shard, which has no price" in fault.what
    assert price_findings([node], frozenset({"gpu"}), {**COSTS, "shard": 875}) == ()
