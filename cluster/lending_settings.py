"""[lending] of slicewise.toml: how long a loan is promised, and how it is taken back."""

from pydantic import BaseModel, ConfigDict, Field


class LendingSettings(BaseModel):
    """[lending]: how loans come back; docs/explanation/rebalancing.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grace_s: int = Field(
        60,
        ge=0,
        le=86_400,
        description="So long borrowed replicas have to go in good order when their lender needs "
        "its own; then Slurm preempts.",
    )
    past_use: bool = Field(
        True,
        description="Who has borrowed much lately, by the half-life of [priority], gets less of "
        "what is idle.",
    )
    term_s: int = Field(
        0,
        ge=0,
        le=86_400,
        description="So long what runs on borrowed quota is left alone, once it has started.",
    )
    turn_s: int = Field(
        1800,
        ge=60,
        le=86_400,
        description="Of jobs that have waited so long for borrowed quota the first one comes "
        "before all others, for so long; its tenant's share is kept until it starts.",
    )
