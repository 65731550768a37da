"""What a site answers before Slicewise is set up, and what Slurm lets one guess of it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from cluster.language.errors import InvalidInputError
from cluster.language.jobs import NodeView, PartitionView
from cluster.language.mig_profiles import boards, profile_of
from slurm_plugin.slurm_config.pads import is_pad

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

    @property
    def is_spread(self) -> bool:
        """Whether commands or the launcher run on other hosts than the daemon."""
        return {self.gateway, *self.login_hosts} != {self.controller}


def guessed(
    config: Mapping[str, str], partitions: Iterable[PartitionView], nodes: Iterable[NodeView]
) -> dict[str, object]:
    """Return the answers that Slurm knows, as ``Answers`` takes them; others are left out."""
    gpu_nodes = [node for node in nodes if node.gpus and not node.is_shapes]
    with_gpus = {name for node in gpu_nodes for name in node.partitions}
    of_gpus = [view for view in partitions if view.name in with_gpus]
    hosts = [text for key, text in sorted(config.items()) if _is_controller(key)]
    found: dict[str, object] = {
        "cluster": config.get("ClusterName", ""),
        "partitions": tuple(view.name for view in _billing_gpus(of_gpus) or of_gpus),
        "gpus": _models(gpu_nodes),
        "slurm_user": config.get("SlurmUser", "").partition("(")[0],
    }
    if hosts:
        host = hosts[0].partition("(")[0]
        found |= {"controller": host, "gateway": host}
    return {key: value for key, value in found.items() if value}


def _billing_gpus(partitions: Iterable[PartitionView]) -> list[PartitionView]:
    """Return those that bill GPUs: others on the same nodes are for jobs on CPUs, as a rule."""
    return [
        view
        for view in partitions
        if any(weight for tres, weight in view.billing_weights.items() if "gres/gpu" in tres)
    ]


def _is_controller(key: str) -> bool:
    return key.startswith("SlurmctldHost") and _HOST.search(key) is not None


def _models(nodes: Iterable[NodeView]) -> Mapping[str, tuple[str, ...]]:
    """Return the GRES types of each GPU model, as far as names tell.

    Types that stand beside each other on some node belong to one model: the first that can be cut
    into all of them. A type that is no MIG profile stands for whole GPUs of a model of its own.
    """
    groups: list[frozenset[str]] = []
    models: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        kinds = frozenset(kind for kind in node.gpus if not is_pad(kind))
        models |= {kind.upper(): (kind,) for kind in sorted(kinds) if not _fits(kind)}
        cut = frozenset(kind for kind in kinds if _fits(kind))
        joined = [group for group in groups if group & cut]
        groups = [group for group in groups if not group & cut]
        groups += [cut.union(*joined)] if cut else []
    for group in groups:
        name = next(iter(fitting_models(group)), "")
        models[name] = (*models.get(name, ()), *sorted(group))
    return {name: models[name] for name in sorted(models) if name}


def fitting_models(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the models that can be cut into all of these."""
    wanted = tuple(kinds)
    return tuple(name for name in boards() if all(is_profile(name, kind) for kind in wanted))


def _fits(kind: str) -> bool:
    return bool(fitting_models((kind,)))


def is_profile(model: str, kind: str) -> bool:
    """Whether the GRES type is a MIG profile of that model."""
    if model not in boards():
        return False
    try:
        profile_of(boards()[model], kind)
    except InvalidInputError:
        return False
    return True
