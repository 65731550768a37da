"""What a site answers before Slicewise is set up, and what Slurm lets one guess of it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from slicewise.cluster.language.gpus.mig_names import NAMES_RULE
from slicewise.cluster.language.gpus.mig_profiles import boards
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.slurm_plugin.rules.site.gpu_types import (
    UnknownTypes,
    gpu_types,
    is_profile,
    may_be_part,
)

_HOST = re.compile(r"\[\d+\]$")


class Answers(BaseModel):
    """The answers; each file of ``slicewise setup --answers`` is one as TOML."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: str = Field(description="Slurm's ClusterName")
    partitions: tuple[str, ...] = Field(
        min_length=1, description="Partitions whose GPUs are managed"
    )
    gpus: Mapping[str, tuple[str, ...]] = Field(
        min_length=1, description="GRES types of each GPU model"
    )
    parent_account: str = Field("root", description="Slurm account above all tenants")
    slurm_user: str = Field("slurm", description="SlurmUser")
    controller: str = Field(description="Host of slurmctld, where the daemon runs")
    gateway: str = Field(description="Host of HAProxy and the launcher")
    login_hosts: tuple[str, ...] = Field((), description="Hosts where users run commands")
    database_url: str = Field(
        "postgresql://slicewise@localhost/slicewise", description="The ledger's database"
    )
    model_repository: Path = Field(
        Path("/srv/models"), description="Directory of models, the same on nodes and login hosts"
    )

    @field_validator("gpus")
    @classmethod
    def _instances_are_no_whole_gpus(
        cls, gpus: Mapping[str, tuple[str, ...]]
    ) -> Mapping[str, tuple[str, ...]]:
        for model, kinds in gpus.items():
            if odd := [
                gres_type
                for gres_type in kinds
                if may_be_part(gres_type) and not is_profile(model, gres_type)
            ]:
                profiles = boards()[model].profiles if model in boards() else boards()
                what = "profiles that it has" if model in boards() else "models that can be cut"
                raise ValueError(
                    f"{model} has no MIG profile {', '.join(odd)}; {what}: {', '.join(profiles)}."
                    f" {NAMES_RULE} Whole GPUs of such a name: write them under whole in"
                    " slicewise.toml"
                )
        return gpus

    @property
    def is_spread(self) -> bool:
        """Whether commands or the launcher run on other hosts than the daemon."""
        return {self.gateway, *self.login_hosts} != {self.controller}


def guessed(
    config: Mapping[str, str], partitions: Iterable[PartitionView], nodes: Iterable[NodeView]
) -> dict[str, object]:
    """Return the answers that Slurm knows, as ``Answers`` takes them; others are left out."""
    gpu_nodes = [node for node in nodes if _has_types(node)]
    with_gpus = {name for node in gpu_nodes for name in node.partitions}
    of_gpus = [view for view in partitions if view.name in with_gpus]
    hosts = [text for key, text in sorted(config.items()) if _is_controller(key)]
    answers: dict[str, object] = {
        "cluster": config.get("ClusterName", ""),
        "partitions": tuple(view.name for view in _billing_gpus(of_gpus) or of_gpus),
        "gpus": gpu_types(gpu_nodes).models,
        "slurm_user": config.get("SlurmUser", "").partition("(")[0],
    }
    if hosts:
        host = hosts[0].partition("(")[0]
        answers |= {"controller": host, "gateway": host}
    return {key: value for key, value in answers.items() if value}


def unknown_types(nodes: Iterable[NodeView]) -> tuple[UnknownTypes, ...]:
    """Return the types of which Slurm does not let one guess the model, nor so the price."""
    return gpu_types(node for node in nodes if _has_types(node)).unknown


def _has_types(node: NodeView) -> bool:
    return bool(node.gpus) and not node.is_shapes


def _billing_gpus(partitions: Iterable[PartitionView]) -> list[PartitionView]:
    """Return those that bill GPUs: others on the same nodes are for jobs on CPUs, as a rule."""
    return [
        view
        for view in partitions
        if any(weight for tres, weight in view.billing_weights.items() if "gres/gpu" in tres)
    ]


def _is_controller(key: str) -> bool:
    return key.startswith("SlurmctldHost") and _HOST.search(key) is not None
