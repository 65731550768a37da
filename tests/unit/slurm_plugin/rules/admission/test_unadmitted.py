"""Tests that jobs which slurmctld took without slicewise.lua are counted, shown and logged once."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.nodes import a_node
from stand_ins.scripted import ScriptedSlurm, job, sync_of

from slicewise.cluster.language.jobs import JobState
from slicewise.slurm_plugin.rules.admission.unadmitted import Unadmitted, unadmitted

pytestmark = pytest.mark.usefixtures("clock")

GPU = {"cpu": "1", "gres/gpu": "1"}
MANAGED = frozenset({"gpu"})
PASSED_BY = {"admin_comment": "", "partition": "gpu", "tres": GPU, "untouched": frozenset()}


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"tres": {"gres/gpu:1g.10gb": "2"}}, 1),
        ({"tres": {"cpu": "1", "gres/shard": "2"}}, 1),
        ({"state": JobState.RUNNING}, 1),
        ({"partition": "cpu,gpu"}, 1),
        ({"admin_comment": "slicewise is nice"}, 1),
        ({"untouched": frozenset({1, 2, 3})}, 3),
        ({"admin_comment": "slicewise:1 token=ab12 tenant=vision"}, 0),
        ({"admin_comment": "site's slicewise:1 token=ab12 tenant=vision undecided"}, 0),
        ({"tres": {"cpu": "4"}}, 0),
        ({"partition": "cpu"}, 0),
        ({"state": JobState.ENDED}, 0),
    ],
)
def test_what_counts(changes: dict[str, Any], count: int) -> None:
    found = unadmitted((job(0, **(PASSED_BY | changes)),), MANAGED)
    assert (found.count, found.newest_s is not None) == (count, count > 0)


def test_jobs_from_before_slicewise_lua_are_no_fault_of_its() -> None:
    """Each site has some when it installs it, and they may run for weeks."""
    jobs = [job(index, **PASSED_BY, submit_s=at_s) for index, at_s in ((1, 999), (2, 1000))]
    assert unadmitted(jobs, MANAGED, 1000.0).count == 1
    assert unadmitted(jobs, MANAGED, 1001.0) == Unadmitted()


async def test_slicewise_lua_is_in_force_since_job_submit_lua_was_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "job_submit.lua").touch()
    os.utime(tmp_path / "job_submit.lua", (5000, 5000))
    cluster_state = sync_of(ScriptedSlurm(job(0), job(1, **PASSED_BY, submit_s=4000)))
    for conf, count in ((tmp_path, 0), (tmp_path / "elsewhere", 1)):
        monkeypatch.setenv("SLURM_CONF", str(conf / "slurm.conf"))
        await cluster_state.turn()
        assert cluster_state.unadmitted.count == count


def test_without_jobs_there_is_none() -> None:
    assert unadmitted((), MANAGED) == Unadmitted(0, None, 0)


async def test_gpus_that_are_had_beside_managed_partitions_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a partition on the same nodes no tenant is charged for them."""
    monkeypatch.setattr("slicewise.slurm_plugin.state.observer._NODES_S", 0.0)
    slurm = ScriptedSlurm(job(0), job(1, **PASSED_BY | {"partition": "cpu"}))
    held: dict[str, int] = {}
    own = frozenset({"gpu", "cpu"})
    node = a_node("n", gpus_allotted=held, partitions=frozenset({"cpu"}))
    slurm.known_nodes = (node,)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    assert cluster_state.unadmitted.count == 0
    slurm.known_nodes = (replace(node, partitions=own),)
    # Nodes are read again at once only where something was changed.
    cluster_state.acted.set()
    await cluster_state.turn()
    assert cluster_state.unadmitted.count == 1


async def test_the_log_says_it_once_for_each_newer_one(caplog: pytest.LogCaptureFixture) -> None:
    slurm = ScriptedSlurm(job(0), job(1, **PASSED_BY))
    cluster_state = sync_of(slurm)
    with caplog.at_level(logging.WARNING, "slicewise.daemon"):
        for _ in range(3):
            await cluster_state.turn()
    lines = [line for line in caplog.messages if line.startswith("not_admitted")]
    assert len(lines) == 1
    assert cluster_state.unadmitted.count == 1
    assert f"job_id={cluster_state.unadmitted.newest}" in lines[0]
