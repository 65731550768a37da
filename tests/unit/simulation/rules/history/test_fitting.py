"""Tests how another site's jobs get partitions, GPU types and tenants of this cluster."""

from dataclasses import replace

from builders.small_site import CLUSTER, JOBS

from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.history.fitting import FittedJobs, fitted
from slicewise.simulation.rules.history.jobs import HistoryJob

ELSEWHERE = replace(JOBS[0], partition="", account="vc1", gpus={"": 8}, nodes=1)
WEIGHTS = {"vision": 3000, "nlp": 1000}
COSTS = {"a100": 7000, "1g.10gb": 1000}
MIXED = SimulatedCluster(
    "lab",
    (*CLUSTER.nodes, SimulatedNode("mig", frozenset({"gpu", "dev"}), {"1g.10gb": 14})),
    accounts=CLUSTER.accounts,
)


def of(
    *jobs: HistoryJob, cluster: SimulatedCluster = CLUSTER, weights: dict[str, int] | None = None
) -> FittedJobs:
    return fitted(jobs, cluster, WEIGHTS if weights is None else weights, COSTS)


def test_what_the_cluster_knows_stays():
    several = replace(JOBS[0], partition="old,gpu")
    jobs = (*JOBS, replace(JOBS[0], gpus={"": 2}), several)
    found = of(*jobs)
    assert all(one is job for one, job in zip(found.jobs, jobs, strict=True))
    assert found.notes == ()


def test_jobs_go_to_the_partition_with_most_gpus_over_as_few_nodes_as_have_them():
    found = of(ELSEWHERE, cluster=MIXED)
    (one,) = found.jobs
    assert (one.partition, one.gpus, one.nodes) == ("gpu", {"a100": 8}, 2)
    assert found.notes[:2] == (
        "Jobs of partitions that the cluster does not have are run in gpu.",
        "GPUs of elsewhere are taken for a100.",
    )


def test_unknown_types_become_the_main_one_of_their_partition():
    strange = replace(JOBS[0], gpus={"v100": 2, "a100": 1})
    one, other = of(strange, replace(strange, partition="dev"), cluster=MIXED).jobs
    assert (one.gpus, one.nodes) == ({"a100": 3}, 1)
    assert other.gpus == {"1g.10gb": 3}


def test_jobs_without_gpus_get_none():
    (one,) = of(replace(ELSEWHERE, gpus={}, nodes=3)).jobs
    assert (one.gpus, one.nodes, one.partition) == ({}, 3, "gpu")


def test_unknown_accounts_become_tenants_by_their_weights():
    jobs = [replace(ELSEWHERE, account=f"vc{number}", gpus={"": 1}) for number in range(8)]
    accounts = [one.account for one in of(*jobs).jobs]
    assert (accounts.count("vision"), accounts.count("nlp")) == (6, 2)


def test_the_account_with_most_work_goes_to_the_heaviest_tenant():
    large, tiny = replace(ELSEWHERE, account="z"), replace(ELSEWHERE, account="a", run_s=1.0)
    assert [one.account for one in of(tiny, large).jobs] == ["nlp", "vision"]


def test_accounts_are_weighed_by_the_jobs_that_count():
    """What came before or comes after has accounts, too, and no say in which tenant they become."""
    start_s = ELSEWHERE.submit_s
    early = replace(ELSEWHERE, account="old", submit_s=start_s - 1, run_s=9e9)
    late = replace(ELSEWHERE, account="new", submit_s=start_s + 1, run_s=9e9)
    jobs = (early, replace(ELSEWHERE, account="z"), late)
    found = fitted(jobs, CLUSTER, WEIGHTS, COSTS, start_s=start_s, end_s=start_s + 1)
    assert found.jobs[1].account == "vision"
    assert {one.account for one in found.jobs} <= WEIGHTS.keys()
    assert [one.account for one in of(*jobs).jobs].index("vision") != 1


def test_known_accounts_count_by_slurm_s_spelling():
    cluster = replace(CLUSTER, accounts={"Bio": "root"})
    found = of(replace(JOBS[0], account="NLP"), replace(JOBS[0], account="bio"), cluster=cluster)
    assert [one.account for one in found.jobs] == ["NLP", "bio"]


def test_without_tenants_accounts_stay():
    (one,) = of(ELSEWHERE, weights={}).jobs
    assert one.account == "vc1"


def test_a_cluster_without_nodes_changes_little():
    (one,) = of(ELSEWHERE, cluster=SimulatedCluster("none", ()), weights={}).jobs
    assert (one.partition, one.nodes) == ("", 1)


def test_the_qos_of_a_tenant_goes_with_its_account():
    """Admission would refuse each job that names another tenant's QOS."""
    named = replace(ELSEWHERE, qos="slicewise_vc1"), replace(ELSEWHERE, qos="long")
    assert [one.qos for one in of(*named).jobs] == ["", "long"]
    assert of(replace(JOBS[0], qos="slicewise_nlp")).jobs[0].qos == "slicewise_nlp"


def test_processors_are_spread_over_as_few_nodes_as_have_them():
    """A history of a machine with other nodes, or one that does not say how many a job had."""
    nodes = tuple(replace(node, cpus=64, memory_mib=1000) for node in CLUSTER.nodes)
    cluster = replace(CLUSTER, nodes=nodes * 8)
    job = replace(ELSEWHERE, gpus={}, cpus=512)
    for cpus, memory_mib, said, spread in (
        (512, 0, 0, 8),
        (509, 0, 0, 8),
        (32, 0, 0, 1),
        (32, 3500, 0, 4),
        (512, 0, 512, 8),  # One processor a node, on a machine with more nodes.
        (512, 0, 16, 16),  # It fits as it was.
        (512, 0, 4, 8),
    ):
        asks = replace(job, cpus=cpus, memory_mib=memory_mib, nodes=said)
        found = of(asks, cluster=cluster)
        assert found.jobs[0].nodes == spread
        assert (said == spread) != ("CPUs of jobs are spread" in " ".join(found.notes))
    own = replace(JOBS[0], gpus={}, cpus=512, nodes=4)
    assert of(own, cluster=cluster).jobs == (own,)
