"""Tests the rebalancing benchmark: the large site, Slurm's replies to it, the report."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.rebalance import __main__ as command
from benchmarks.rebalance import rounds, site
from benchmarks.rebalance.replies import Replies
from benchmarks.rebalance.site import Size
from benchmarks.reporting import run
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.limits.changes import stages
from slicewise.slurm_plugin.rules.limits.desired import (
    Allowed,
    desired_limits,
    differences,
    found_of,
)
from slicewise.slurm_plugin.rules.mig.gpu_state import lines_by_node
from slicewise.slurm_plugin.rules.quota.demand import demand_of
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.lending import lend
from slicewise.slurm_plugin.rules.quota.nodes import capacity
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.reclaim.recalls import short_lenders
from slicewise.slurm_plugin.rules.slurm_config.node_lines import node_positions

SMALL = Size(tenants=200, jobs=1_000, gpus=480, services=20)
NOW_S = 1_700_000_000
PARTITIONS = frozenset({site.PARTITION})


def running(jobs: tuple[JobView, ...]) -> dict[int, JobView]:
    return {job.job_id: job for job in jobs if job.state is JobState.RUNNING}


def test_a_site_is_as_large_as_asked_and_no_gpu_is_held_twice():
    found = site.short_lenders(SMALL, 1, NOW_S)
    assert (len(found.policy), len(found.jobs)) == (200, 1_000)
    assert len(found.nodes) == 60
    held: Counter[tuple[str, int]] = Counter()
    for job_id, job in running(found.jobs).items():
        ((node, indices),) = found.indices[job_id].items()
        assert job.nodes == (node,)
        assert sum(job.gpus.values()) == len(indices)
        held.update((node, index) for index in indices)
    assert set(held.values()) == {1}
    assert {node.name: node.gpus_held for node in found.nodes} == {
        node.name: frozenset(index for name, index in held if name == node.name)
        for node in found.nodes
    }


def test_lenders_are_short_of_what_was_lent_while_they_were_idle():
    before, after = (make(SMALL, 1, NOW_S) for make in (site.idle_lenders, site.short_lenders))
    whole = capacity(before.nodes, PARTITIONS, site.COSTS, {})
    loans = lend(
        before.policy,
        demand_of(before.policy, jobs_by_holder(before.jobs, PARTITIONS, site.COSTS, {})),
        (),
        whole,
    )
    wants = demand_of(after.policy, jobs_by_holder(after.jobs, PARTITIONS, site.COSTS, {}))
    assert short_lenders(after.policy, loans, wants)
    replicas = [job for job in running(after.jobs).values() if job.array_job_id is not None]
    assert all(job.qos == borrowed_qos(job.account) for job in replicas)
    ended = {one.job_id for one in after.ended}
    assert ended
    assert ended <= running(before.jobs).keys() - running(after.jobs).keys()


def test_the_files_of_a_node_have_the_devices_that_its_survey_has():
    found = site.nodes(SMALL)[:2]
    slurm_conf, gres_conf = map(lines_by_node, site.files(found))
    surveys = site.inventories(found)
    for node, count in zip(found, (56, 16), strict=True):
        there = node_positions(slurm_conf[node.name], gres_conf[node.name], node.name)
        assert len(there) == 56
        assert sum(one is not None for one in there) == sum(node.gpus.values()) == count
        assert json.dumps(surveys[node.name]).count(f'"GPU-{node.name}-') == 8


def test_the_replies_show_every_limit_that_was_set():
    shown = site.idle_lenders(SMALL, 1, NOW_S)
    slurm = Replies(shown)

    async def settled() -> int:
        """How many changes there are still after two rounds."""
        for _ in range(2):
            found = found_of(
                "bench", await slurm.associations(), await slurm.qos(), await slurm.config()
            )
            allowed = Allowed(
                policy=shown.policy,
                standings=standings(shown.policy, ()),
                run_minutes={"tenant0000": 77},
                costs=site.COSTS,
                models=dict.fromkeys(site.COSTS, "A100-80GB"),
            )
            differing = differences(desired_limits(allowed, found, {}), found)
            for stage in stages(differing, found):
                await slurm.sacctmgr(stage)
        return len(differing)

    assert asyncio.run(settled()) == 0


def test_the_command_writes_every_key_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    step = {"seconds": 0.5, "cpu_s": 0.4, "changed": 3, "saw": {}}
    measured = {"seconds": 1.5, "cpu_s": 1.0, "look_s": 0.1, "steps": {"lend": step}}
    one = {"ledger": 3, "slurm": 6, "of": {}, "seconds": 0.2, "decision_s": 0.1}
    measured["rounds"] = {"quiet": one, "busy": one | {"ledger": 8, "slurm": 19}}
    measured["calls"] = rounds.calls(measured["rounds"])
    monkeypatch.setattr(rounds, "measured", lambda *_: measured)
    report = tmp_path / "reports" / "rebalance.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--report", str(report)])
    run("rebalance", None, "", lambda _: command.measure(command.FULL), command.show)
    found = json.loads(report.read_text())
    assert found["seconds"] == 1.5
    assert {to: found["calls"][to] for to in ("ledger", "slurm")} == {"ledger": 3, "slurm": 6}
    assert found["calls"]["busy"] == {"ledger": 8, "slurm": 19, "of": {}}
