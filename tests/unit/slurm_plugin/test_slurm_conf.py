"""The lines of slurm.conf, and what is said of those that are missing or wrong."""

import pytest

from cluster.jobs import PartitionView
from slurm_plugin.decide.slurm_conf import conf_faults, conf_lines

COSTS = {"1g.10gb": 1000, "3g.40gb": 3500}
WEIGHTS = {"cpu": 0.0, "mem": 0.0, "gres/gpu:1g.10gb": 1000.0, "gres/gpu:3g.40gb": 3500.0}
CONFIG = {
    "AccountingStorageEnforce": "associations,limits,qos,safe",
    "AccountingStorageTRES": "cpu,mem,billing,gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
}


def faults(config: dict[str, str] | None = None, weights: dict[str, float] | None = None):
    partitions = [PartitionView("gpu", WEIGHTS if weights is None else weights, "")]
    return conf_faults({**CONFIG, **(config or {})}, partitions, ["gpu"], COSTS)


def test_the_lines():
    weights = '"CPU=0,Mem=0,GRES/gpu:1g.10gb=1000,GRES/gpu:3g.40gb=3500"'
    assert conf_lines(["gpu", "long"], COSTS) == (
        "AccountingStorageEnforce=associations,limits,qos",
        "AccountingStorageTRES=gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        f"PartitionName=gpu TRESBillingWeights={weights}",
        f"PartitionName=long TRESBillingWeights={weights}",
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


def test_without_weights_slurm_bills_processors():
    assert len(faults(weights={})) == len(COSTS) + 1


@pytest.mark.parametrize("weights", [{}, {"cpu": 1.0, "mem": 0.0}])
def test_another_partition_that_bills_is_said(weights: dict[str, float]):
    views = [PartitionView("gpu", WEIGHTS, ""), PartitionView("cpu", weights, "")]
    (fault,) = conf_faults(CONFIG, views, ["gpu"], COSTS)
    assert "Partition cpu is not managed, but bills" in fault


def test_one_that_bills_nothing_is_all_right():
    views = [PartitionView("gpu", WEIGHTS, ""), PartitionView("cpu", {"cpu": 0.0}, "")]
    assert conf_faults(CONFIG, views, ["gpu"], COSTS) == ()


def test_a_partition_that_is_not_there_is_said():
    (fault,) = conf_faults(CONFIG, [], ["gpu"], COSTS)
    assert "no partition gpu" in fault


def test_a_partition_without_default_memory_is_said_where_memory_is_allotted():
    views = [PartitionView("gpu", WEIGHTS, "", has_default_memory=False)]
    allots = {**CONFIG, "SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerNode": "UNLIMITED"}
    (fault,) = conf_faults(allots, views, ["gpu"], COSTS)
    assert "Partition gpu gives a job that asks for no memory all" in fault
    for config in (
        CONFIG,
        {**allots, "DefMemPerCPU": "100"},
        {**allots, "JobDefaults": "DefMemPerGPU=9"},
    ):
        assert conf_faults(config, views, ["gpu"], COSTS) == ()
