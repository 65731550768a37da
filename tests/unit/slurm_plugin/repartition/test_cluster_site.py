"""Tests what a repartition asks of the cluster itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins.emulated_gpus import gpu_node
from stand_ins.repartition_world import Crashes, MemoryJournal, planned
from stand_ins.repartitioned_site import CONF, cluster_site
from stand_ins.scripted import ScriptedSlurm, job, settings

from slicewise.cluster.gpu.nvml import read_inventory
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
)
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.sandbox.nvml.driver import EmulatedGpu
from slicewise.slurm_plugin.repartition.cluster_site import ClusterSite

pytestmark = pytest.mark.usefixtures("clock")


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
    assert await site.holders("gpu01", {0}) == {
        (one.job_id, one.start_s) for one in (holding, ending)
    }


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    return cluster_site(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole() -> Inventory:
    with gpu_node(EmulatedGpu("H200-141GB", mig=False)) as node:
        return read_inventory(node.host_root)


def kept() -> Repartition:
    journal = MemoryJournal(Crashes())
    return journal.keep_texts(journal.open(planned(), "root").repartition_id, *CONF.values())


def test_files_are_put_back_and_what_was_told_is_not_lost(
    site: ClusterSite, tmp_path: Path, whole: Inventory
) -> None:
    other = replace(whole, gpus=(replace(whole.gpus[0], name="NVIDIA H300"),))
    site.write("gpu01", "NVIDIA", site.devices("gpu01", other))
    told, repartition = site.texts(), kept()
    for _ in range(2):
        site.put_back(repartition)
        assert dict(zip(CONF, site.texts(), strict=True)) == CONF
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.conf*")}
    modes |= {path.stat().st_mode & 0o777 for path in tmp_path.glob(".*.conf.slicewise-1")}
    assert modes == {0o640}
    site.put_told(repartition)
    assert site.texts() == told
    assert not list(tmp_path.glob(".*"))


def test_what_an_operator_has_written_meanwhile_stays(
    site: ClusterSite, tmp_path: Path, whole: Inventory
) -> None:
    other = replace(whole, gpus=(replace(whole.gpus[0], name="NVIDIA H300"),))
    site.write("gpu01", "NVIDIA", site.devices("gpu01", other))
    repartition = kept()
    site.put_back(repartition)
    by_hand = CONF["slurm_conf"].replace("nvidia_h200", "h200")
    (tmp_path / "slurm.conf").write_text(by_hand)
    site.put_told(repartition)
    assert site.texts()[0] == by_hand
    assert not list(tmp_path.glob(".*"))


def test_where_one_file_can_not_have_it_neither_is_written(
    site: ClusterSite, tmp_path: Path, whole: Inventory
) -> None:
    shared = CONF["slurm_conf"].replace("gpu01", "gpu[01-02]")
    (tmp_path / "slurm.conf").write_text(shared)
    other = replace(whole, gpus=(replace(whole.gpus[0], name="NVIDIA H300"),))
    with pytest.raises(SlicewiseError, match="SW-REPARTITION-CONF"):
        site.write("gpu01", "NVIDIA", site.devices("gpu01", other))
    assert site.texts() == (shared, CONF["gres_conf"])
