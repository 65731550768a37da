"""[repartition] of slicewise.toml: whether GPUs are repartitioned, and how Slurm learns of it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class RepartitionSettings(BaseModel):
    """[repartition]: whether and how GPUs are repartitioned; docs/how-to/repartitioning.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allowed: bool = Field(False, description="false: plans are only printed and no GPU is cut.")
    nodes_at_once: int = Field(
        1, ge=1, le=64, description="Maximum number of nodes whose GPUs one plan changes."
    )
    horizon_s: int = Field(
        3600, ge=60, description="Seconds for which a demand forecast is trusted."
    )
    repartition_s: int = Field(
        60,
        ge=1,
        description="Assumed seconds of a repartition, until some have been measured.",
    )
    move_s: int = Field(
        900, ge=1, description="Maximum seconds to wait for jobs and replicas to leave a GPU."
    )
    slurm_conf: Path = Field(
        Path("/etc/slurm/slurm.conf"), description="This cluster's; includes are not followed."
    )
    gres_conf: Path = Field(
        Path("/etc/slurm/gres.conf"), description="This cluster's; includes are not followed."
    )
    restart_slurmctld: tuple[str, ...] = Field(
        ("systemctl", "restart", "slurmctld"),
        min_length=1,
        description="Command that restarts slurmctld; needed before Slurm 24.11.",
    )
    restart_slurmd: tuple[str, ...] = Field(
        ("systemctl", "restart", "slurmd"),
        min_length=1,
        description="Command that restarts slurmd on the node; jobs go on.",
    )
    on_node: tuple[str, ...] = Field(
        ("systemd-run", "--quiet", "--pipe", "--wait", "--collect"),
        description="Put before commands that read or cut a node's GPUs: a job without GPUs may "
        "not open them where Slurm constrains devices.",
    )
    device_directory: str = Field(
        "/dev", description="Directory of the nodes' device files; %n is the node's name."
    )

    def devices_of(self, node: str) -> str:
        """The directory of this node's device files."""
        return self.device_directory.replace("%n", node)
