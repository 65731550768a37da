"""A GPU node and Slurm as the doctors see them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.nodes import a_node
from builders.settings import SITE_TOML

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.slurm_plugin.cli.commands import doctor as site_report
from slicewise.slurm_plugin.cli.common import slurm_facts
from stand_ins.emulated_gpus import FaultyDriver, two_boards

SETTINGS = (
    SITE_TOML
    + """\
[daemon]
run_dir = "/nowhere/run"
[gateway]
directory = "/nowhere/gateway"
"""
)

CONSTRAINED = {
    "AuthType": "auth/none",
    "SlurmctldHost[0]": "head(192.0.2.1)",
    "TaskPlugin": "task/cgroup",
    "ConstrainDevices": "yes",
    "ProctrackType": "proctrack/cgroup",
    "SchedulerParameters": "batch_sched_delay=0",
}


def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDriver]:
    """An A100 with 3g and 1g; an H200 that is not cut."""
    settings(tmp_path, monkeypatch)
    monkeypatch.setattr(site_report, "missing_programs", lambda _: ())
    monkeypatch.setattr(site_report, "namespace_bars", dict)
    with two_boards() as driver:
        monkeypatch.setenv("SLICEWISE_HOST_ROOT", str(driver.host_root))
        driver.create(Placement("3g.40gb", 4, 4))
        driver.create(Placement("1g.10gb", 1, 1))
        yield driver


def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
    (tmp_path / "slicewise.toml").write_text(SETTINGS + more)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))


def slurm_has(
    monkeypatch: pytest.MonkeyPatch,
    gpus: dict[str, int],
    config: dict[str, str] = CONSTRAINED,
    allow_qos: frozenset[str] | None = None,
    deny_qos: frozenset[str] = frozenset(),
) -> None:
    class Slurm:
        async def nodes(self) -> tuple[NodeView, ...]:
            return (a_node("gpu07", gpus=gpus),)

        async def config(self) -> dict[str, str]:
            return config

        async def partitions(self) -> tuple[PartitionView, ...]:
            gpu = PartitionView("gpu", {}, "slicewise_gate")
            return (replace(gpu, allow_qos=allow_qos, deny_qos=deny_qos),)

        async def qos(self) -> tuple[Qos, ...]:
            return ()

        async def associations(self) -> tuple[Association, ...]:
            assert allow_qos is not None or deny_qos, "slurmdbd may be out of the node's reach"
            listed = frozenset({"normal", "slicewise_vision", "slicewise_vision_borrowed"})
            return (Association("test", "vision", "", "root", listed, "", {}),)

    slurm_is(monkeypatch, Slurm())


def slurm_is(monkeypatch: pytest.MonkeyPatch, slurm: Any) -> None:
    async def unknown() -> None:
        return None

    monkeypatch.setattr(site_report, "open_slurm", lambda _: slurm)
    monkeypatch.setattr(slurm_facts, "slurmctld_ahead_s", unknown)
    monkeypatch.setattr(slurm_facts, "billing_limits", unknown)
