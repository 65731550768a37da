"""Tests what a repartition asks of the cluster itself."""

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins.emulated_gpus import gpu_node
from stand_ins.node_commands import command, runs_jobs
from stand_ins.repartitioned_site import CONF, cluster_site
from stand_ins.scripted import ScriptedSlurm, job, settings

from slicewise.cluster.gpu.nvml import read_inventory
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.sandbox.nvml.driver import EmulatedGpu
from slicewise.slurm_plugin.repartition.cluster_site import ClusterSite


def on_gpu01(index: int, state: JobState = JobState.RUNNING, **changes: Any) -> JobView:
    return replace(job(index, state), nodes=("gpu01",), **changes)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    return cluster_site(tmp_path, monkeypatch)


def says(place: Path, text: str) -> None:
    """A node, of which root is who attacks."""
    runs_jobs(place)
    command(place, "systemd-run", f"printf %s {shlex.quote(text)}")


@pytest.fixture(scope="module")
def whole() -> Inventory:
    with gpu_node(EmulatedGpu("H200-141GB", mig=False)) as node:
        return read_inventory(node.host_root)


@pytest.mark.parametrize(
    "name",
    [
        "H200:1\nPrologSlurmctld=/tmp/evil\n#",
        "H200:1\rPrologSlurmctld=/tmp/evil",
        "H200:1\tPrologSlurmctld=/tmp/evil",
        "H200,gpu:1g.10gb:999",
        "H200#",
    ],
)
async def test_no_gpu_s_name_becomes_a_line_of_slurm_conf(
    site: ClusterSite, tmp_path: Path, whole: Inventory, name: str
) -> None:
    """From what the node prints to the files that slurmctld reads at its next start."""
    forged = replace(whole, gpus=(replace(whole.gpus[0], name=name),))
    says(tmp_path, json.dumps(asdict(forged)))
    with pytest.raises(SlicewiseError, match="SW-WIRE"):
        site.write("gpu01", "NVIDIA", site.devices("gpu01", await site.inventory("gpu01", "")))
    # The reader failed to see it: then nothing is written either.
    with pytest.raises(SlicewiseError, match="SW-REPARTITION-CONF"):
        site.write("gpu01", "NVIDIA", site.devices("gpu01", forged))
    assert dict(zip(CONF, site.texts(), strict=True)) == CONF


async def test_what_a_driver_says_is_written(
    site: ClusterSite, tmp_path: Path, whole: Inventory
) -> None:
    says(tmp_path, json.dumps(asdict(whole)))
    site.write("gpu01", "NVIDIA", site.devices("gpu01", await site.inventory("gpu01", "")))
    assert dict(zip(CONF, site.texts(), strict=True)) == CONF


async def test_only_jobs_that_the_plan_names_and_that_run_on_loan_end() -> None:
    """Those that may not be requeued are cancelled, as preemption does."""
    plain = {"array_job_id": None, "task_index": None, "admin_comment": ""}
    lent = plain | {"qos": "slicewise_vision_borrowed"}
    slurm = ScriptedSlurm()
    slurm.shown = (
        on_gpu01(0, **lent),
        on_gpu01(1, **plain),
        on_gpu01(2, **lent),
        on_gpu01(3, JobState.COMPLETING, **lent),
        on_gpu01(4, **lent),
        on_gpu01(5, **lent),
        on_gpu01(6, **lent),
        on_gpu01(7, **lent),
        # With a component of a heterogeneous job all others would end.
        on_gpu01(8, **lent, het_job_id=908),
    )
    slurm.refusals = {
        (906, 1000): "Requested operation is presently disabled for job 906",
        (907, 1000): "Access/permission denied",
    }
    site = ClusterSite(settings(), slurm, DaemonClient(settings().daemon))
    names = tuple(f"job {job_id}" for job_id in (900, 901, 903, 904, 905, 906, 907, 908))
    # What runs as job 905 by now is not the run that was planned for.
    runs = frozenset({(900, 1000), (901, 1000), (902, 1000), (903, None), (905, 400), (908, 1000)})
    await site.end_loans(runs | slurm.refusals.keys(), names)
    assert slurm.done == [("requeue", {(900, 1000), *slurm.refusals}), ("cancel", 906)]
