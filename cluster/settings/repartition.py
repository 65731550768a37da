"""[repartition] of slicewise.toml: whether GPUs are repartitioned, and how Slurm learns of it."""

from pathlib import Path

from pydantic import Field

from slicewise.cluster.settings.section import Section


class RepartitionSettings(Section):
    """[repartition]: whether and how GPUs are repartitioned; docs/how-to/repartitioning.md."""

    allowed: bool = Field(False, description="false: plans are only printed and no GPU is cut.")
    nodes_at_once: int = Field(
        1, ge=1, le=64, description="Maximum number of nodes whose GPUs one plan changes."
    )
    move_s: int = Field(
        900, ge=1, description="Maximum seconds to wait for jobs and replicas to leave a GPU."
    )
    slurm_conf: Path = Field(
        Path("/etc/slurm/slurm.conf"),
        description="This cluster's, with gres.conf beside it; includes are not followed.",
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

    @property
    def gres_conf(self) -> Path:
        """Path of gres.conf: Slurm reads it beside slurm.conf."""
        return self.slurm_conf.with_name("gres.conf")
