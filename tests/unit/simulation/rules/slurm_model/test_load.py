"""A generated load of a large cluster: what becomes of it."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from builders.model_world import START_S

from slicewise.simulation.rules.cluster import (
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest, QosLimits
from slicewise.simulation.rules.slurm_model.model import SlurmModel

NODES, TENANTS, JOBS = 125, 10, 1500
SPAN_S = 0.4 * 86_400
LIMITS_S = (3600, 4 * 3600, 12 * 3600, 86_400, 3 * 86_400)


def large() -> SlurmModel:
    nodes = tuple(
        SimulatedNode(f"n{i:03}", frozenset({"gpu"}), {"a100": 8}, 64) for i in range(NODES)
    )
    scheduling = Scheduling(PriorityWeights(age=1000, fair_share=10_000))
    accounts = {f"t{i}": "root" for i in range(TENANTS)}
    one = SlurmModel(
        SimulatedCluster("large", nodes, scheduling, accounts),
        start_s=START_S,
        costs={"a100": 1000},
    )
    one.set_qos("loan", QosLimits())
    own = QosLimits(grp_tres={"billing": NODES * 8 * 1000 // TENANTS}, preempts=frozenset({"loan"}))
    for account in accounts:
        one.set_qos(account, own)
    return one


def load(seed: int) -> Iterator[tuple[float, ModelRequest]]:
    """More than the cluster can run, so that a queue builds up."""
    draw = Random(seed)  # noqa: S311 -- a load, no secret
    for submit_s in sorted(draw.random() * SPAN_S for _ in range(JOBS)):
        gpus = draw.choice((1, 1, 1, 1, 2, 2, 4, 8, 16, 32))
        account = f"t{draw.randrange(TENANTS)}"
        limit_s = draw.choice(LIMITS_S)
        yield (
            submit_s,
            ModelRequest(
                user=f"u{draw.randrange(100)}",
                uid=1,
                account=account,
                partition="gpu",
                qos=draw.choice((account, account, "loan")),
                gpus={"a100": min(gpus, 8)},
                nodes=max(1, gpus // 8),
                cpus=4 * min(gpus, 8),
                time_limit_s=limit_s,
                run_s=limit_s * draw.uniform(0.2, 1.2),
            ),
        )


def run(seed: int) -> tuple[SlurmModel, int]:
    one, longest = large(), 0
    for submit_s, request in load(seed):
        one.advance(START_S + submit_s)
        one.submit(request)
        longest = max(longest, sum(shown.state == "PENDING" for shown in one.jobs[-400:]))
    return one, longest


@pytest.mark.slow
def test_a_busy_cluster_is_modelled_twice_the_same():
    one, longest = run(1)
    other, _ = run(1)
    ended = one.take_ended()
    assert ended == other.take_ended()
    assert one.jobs == other.jobs
    words = Counter(run.state for run in ended)
    assert words["COMPLETED"] > 100
    assert words["PREEMPTED"]
    assert words["TIMEOUT"]
    assert longest > 100
