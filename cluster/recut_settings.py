"""[recut] of slicewise.toml: whether GPUs are re-cut, and how the site's Slurm learns of it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class RecutSettings(BaseModel):
    """[recut]: whether and how GPUs are re-cut; docs/how-to/recutting.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allowed: bool = Field(False, description="false: plans are printed, nothing is cut.")
    nodes_at_once: int = Field(
        1, ge=1, le=64, description="A plan touches GPUs of so many nodes at most."
    )
    horizon_s: int = Field(3600, ge=60, description="So long the demand is believed.")
    recut_s: int = Field(60, ge=1, description="How long one takes, until some were measured.")
    move_s: int = Field(900, ge=1, description="So long it waits for what must move off a GPU.")
    slurm_conf: Path = Field(
        Path("/etc/slurm/slurm.conf"), description="This cluster's; includes are not followed."
    )
    gres_conf: Path = Field(
        Path("/etc/slurm/gres.conf"), description="This cluster's; includes are not followed."
    )
    restart_slurmctld: tuple[str, ...] = Field(
        ("systemctl", "restart", "slurmctld"), min_length=1, description="Before Slurm 24.11."
    )
    restart_slurmd: tuple[str, ...] = Field(
        ("systemctl", "restart", "slurmd"), min_length=1, description="On the node; jobs live on."
    )
    on_node: tuple[str, ...] = Field(
        ("systemd-run", "--quiet", "--pipe", "--wait", "--collect"),
        description="Before what reads or cuts a node's GPUs: a job without GPUs may not open them "
        "where Slurm constrains devices.",
    )
    device_directory: str = Field(
        "/dev", description="Where the nodes' device files are; %n is the node's name."
    )

    def devices_of(self, node: str) -> str:
        """The directory of this node's device files."""
        return self.device_directory.replace("%n", node)
