"""A site whose GPUs are repartitioned, with files of its own."""

from pathlib import Path

import pytest

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.slurm_plugin.repartition.cluster_site import ClusterSite
from stand_ins.scripted import ScriptedSlurm, settings


def cluster_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    """With files of its own, and commands of Slurm's that stand in ``tmp_path``."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    files = {name: tmp_path / f"{name.removesuffix('_conf')}.conf" for name in CONF}
    for name, text in CONF.items():
        files[name].write_text(text)
        files[name].chmod(0o640)
    known = settings()
    ours = known.model_copy(
        update={
            "repartition": known.repartition.model_copy(update={"slurm_conf": files["slurm_conf"]})
        }
    )
    return ClusterSite(ours, ScriptedSlurm(), DaemonClient(known.daemon))


CONF = {
    "slurm_conf": "ClusterName=c\nNodeName=gpu01 CPUs=4 Gres=gpu:nvidia_h200:1\n",
    "gres_conf": "NodeName=gpu01 AutoDetect=off Name=gpu Type=nvidia_h200 File=/dev/nvidia0\n",
}
