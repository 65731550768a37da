"""What the daemon reads for users: a ledger and Slurm of values, which it has seen."""

from dataclasses import replace

from builders.ended_runs import ended
from builders.tenants import policy_of, tenant

from slicewise.cluster.language.jobs import JobState, NodeView
from slicewise.slurm_plugin.api.reads import Reads
from stand_ins.scripted import (
    ScriptedLedger,
    ScriptedSlurm,
    job,
    settings,
    sync_of,
)

POLICY = policy_of(
    tenant("lab", 6000), tenant("vision", 2000, "lab"), tenant("nlp", 3000, "lab"), tenant("bio", 7)
)


async def seen_reads() -> Reads:
    ledger = ScriptedLedger(shown=POLICY)
    ledger.charges.post([ended("vision", 1, 10), ended("nlp", 2, 777), ended("vision", 3, 30)])
    running = job(0, JobState.RUNNING, nodes=("n1",))
    slurm = ScriptedSlurm(
        running, replace(running, job_id=7, account="nlp", user="bob", qos="slicewise_nlp")
    )
    gpus = {"1g.10gb": 14}
    slurm.known_nodes = (
        NodeView("n1", "n1", frozenset({"MIXED"}), gpus, {"1g.10gb": 2}, frozenset({"gpu"})),
    )
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return Reads(settings(), slurm, ledger, cluster_state)
