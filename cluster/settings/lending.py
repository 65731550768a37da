"""[lending] of slicewise.toml: how long a loan is promised, and how it is taken back."""

from pydantic import Field

from slicewise.cluster.settings.section import Section


class LendingSettings(Section):
    """[lending]: how loans come back; docs/explanation/quotas.md."""

    grace_s: int = Field(
        60,
        ge=0,
        le=86_400,
        description="Seconds that borrowed replicas have to finish their requests when the lender "
        "needs its quota back; then Slurm preempts.",
    )
    past_use: bool = Field(
        True,
        description="Tenants that have borrowed much lately, by the half-life of [priority], get "
        "less of the idle quota.",
    )
    term_s: int = Field(
        0,
        ge=0,
        le=86_400,
        description="Seconds for which a job or replica on borrowed quota is left alone after "
        "its start.",
    )
