"""What slicewise setup reads of a site's Slurm."""

from pathlib import Path

import pytest
from builders.nodes import a_node

from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.slurm_plugin.cli.commands import admission, setup
from slicewise.slurm_plugin.cli.common import slurm_facts

CONFIG = {
    "AccountingStorageEnforce": "associations,safe",
    "AccountingStorageTRES": "cpu,mem,billing,gres/tmpdisk",
    "AuthType": "auth/munge",
    "ClusterName": "hpc",
    "MpiParams": "(null)",
    "SlurmUser": "slurmadm(900)",
    "SlurmctldHost[0]": "head(10.0.0.1)",
    "SlurmctldHost[1]": "spare(10.0.0.2)",
}


def node(name: str, partition: str, **gpus: int) -> NodeView:
    kinds = {kind.replace("_", "."): count for kind, count in gpus.items()}
    named = {kind.removeprefix("g"): count for kind, count in kinds.items()}
    return a_node(name, gpus=named, partitions=frozenset({partition}))


NODES = (
    node("a1", "gpu", g1g_10gb=7, pad4=7),
    node("a2", "gpu", g1g_10gb=3, g3g_40gb=1),
    node("h1", "big", g1g_18gb=3, g3g_71gb=1, l40s=2),
    node("c1", "cpu"),
)

PARTITIONS = (
    PartitionView("gpu", {}, ""),
    PartitionView("big", {}, ""),
    PartitionView("cpu", {}, ""),
)

SCRIPT = "-- the site's own\nreturn slurm.SUCCESS\n"


def slurm_of_a_site(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[NodeView, ...] = NODES,
    partitions: tuple[PartitionView, ...] = PARTITIONS,
    limits: tuple[BillingLimit, ...] = (),
) -> None:
    class Slurm:
        async def config(self) -> dict[str, str]:
            return CONFIG

        async def partitions(self) -> tuple[PartitionView, ...]:
            return partitions

        async def nodes(self) -> tuple[NodeView, ...]:
            return nodes

        async def qos(self) -> tuple[Qos, ...]:
            return (Qos("normal", {}, frozenset()),)

    async def billing_limits() -> tuple[BillingLimit, ...]:
        return limits

    async def unknown() -> None:
        return None

    (tmp_path / "job_submit.lua").write_text(SCRIPT)
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("SLICEWISE_CONFIG", "/etc/slicewise/slicewise.toml")
    monkeypatch.setattr(slurm_facts, "slurmctld_ahead_s", unknown)
    monkeypatch.setattr(slurm_facts, "billing_limits", billing_limits)
    monkeypatch.setattr(setup, "open_slurm", lambda _: Slurm())
    monkeypatch.setattr(admission, "open_slurm", lambda _: Slurm())
