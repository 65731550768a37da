"""What a re-cut asks of the cluster itself."""

from dataclasses import replace
from typing import Any

from scripted import ScriptedSlurm, job, settings

from cluster.daemon_client import DaemonClient
from cluster.jobs import JobState, JobView
from slurm_plugin.recut.site import ClusterSite


def on_gpu01(index: int, state: JobState = JobState.RUNNING, **changes: Any) -> JobView:
    return replace(job(index, state), nodes=("gpu01",), **changes)


async def test_a_job_that_is_completing_may_hold_any_of_its_node_s_gpus() -> None:
    """Slurm has its devices for free as soon as it ends, before its processes have ended."""
    slurm = ScriptedSlurm()
    holding, beside = on_gpu01(0), on_gpu01(1)
    ending = on_gpu01(2, JobState.COMPLETING)
    probe = on_gpu01(3, JobState.COMPLETING, tres={"cpu": "1"})
    elsewhere = replace(ending, job_id=ending.job_id + 100, nodes=("gpu02",))
    slurm.shown = (holding, beside, ending, probe, elsewhere)
    slurm.known_devices = {
        one.job_id: {"gpu01": frozenset({index})} for index, one in enumerate((holding, beside))
    }
    site = ClusterSite(settings(), slurm, DaemonClient(settings().daemon))
    assert await site.holders("gpu01", {0}) == {holding.job_id, ending.job_id}
