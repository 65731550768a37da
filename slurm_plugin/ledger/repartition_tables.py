"""Tables of the journal of repartitioning, and of the last look at each GPU node."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
)
from slicewise.slurm_plugin.ledger.tables import metadata


def _listed(
    words: type[RepartitionState | RepartitionStep | Direction | RepartitionStepOutcome],
) -> str:
    return ", ".join(f"'{word}'" for word in words)


repartitions = Table(
    "repartitions",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("gpu_uuid", Text, nullable=False),
    Column("before", JSONB, nullable=False),
    Column("after", JSONB, nullable=False),
    Column("moves", JSONB, nullable=False),
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("gain_millislice_s", BigInteger, nullable=False),
    Column("drained_millislice_s", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default="running"),
    Column("error", Text, nullable=False, server_default=""),
    Column("slurm_conf", Text),
    Column("gres_conf", Text),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("ended_at", DateTime(timezone=True)),
    Column("ends", JSONB, nullable=False, server_default="[]"),
    CheckConstraint(f"state IN ({_listed(RepartitionState)})", name="state_known"),
    CheckConstraint("(ended_at IS NULL) = (state IN ('running', 'stuck'))", name="ended_at_end"),
    Index("ix_repartitions_newest", "cluster", "id"),
    Index(
        "uq_repartitions_unfinished",
        "cluster",
        "gpu_uuid",
        unique=True,
        postgresql_where=text("ended_at IS NULL"),
    ),
    comment="Each GPU that was cut anew: what it was, what it became, what Slurm was told before.",
)

repartition_steps = Table(
    "repartition_steps",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("repartition_id", BigInteger, ForeignKey(repartitions.c.id), nullable=False),
    Column("step", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("outcome", Text, nullable=False, server_default="running"),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("ended_at", DateTime(timezone=True)),
    Column("words", Text, nullable=False, server_default=""),
    CheckConstraint(f"step IN ({_listed(RepartitionStep)})", name="step_known"),
    CheckConstraint(f"direction IN ({_listed(Direction)})", name="direction_known"),
    CheckConstraint(f"outcome IN ({_listed(RepartitionStepOutcome)})", name="outcome_known"),
    CheckConstraint("(ended_at IS NULL) = (outcome = 'running')", name="ended_with_outcome"),
    Index("ix_repartition_steps_repartition", "repartition_id", "id"),
    comment="Steps of a repartition; one without an end was under way when its process was killed.",
)

mig_nodes = Table(
    "mig_nodes",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("inventory", JSONB, nullable=False),
    comment="The last look at each GPU node: how it is cut.",
)
