"""Adds what one service's API keys, keys that expire, and the last use of keys need.

Programs of earlier revisions can't use the result: they would let a key of one service in to all
services of its tenant, and for ever. A downgrade revokes such keys for the same reason.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KEYS = """
ALTER TABLE slicewise.api_keys
    ADD COLUMN service text NOT NULL DEFAULT '',
    ADD COLUMN expires_at timestamptz;

CREATE TABLE slicewise.api_key_uses (
    cluster text,
    key_id text,
    used_at timestamptz NOT NULL,
    CONSTRAINT pk_api_key_uses PRIMARY KEY (cluster, key_id),
    CONSTRAINT fk_api_key_uses_cluster FOREIGN KEY (cluster, key_id)
        REFERENCES slicewise.api_keys (cluster, key_id)
);
COMMENT ON TABLE slicewise.api_key_uses
    IS 'When each key last let a request in, to within a minute or two. Overwritten.';
"""

_SERVED = """
DELETE FROM slicewise.served_revisions;
INSERT INTO slicewise.served_revisions VALUES ('0010');
"""

_DOWN = """
INSERT INTO slicewise.api_key_revocations (cluster, key_id, author)
SELECT cluster, key_id, 'slicewise' FROM slicewise.api_keys
 WHERE service <> '' OR expires_at IS NOT NULL
    ON CONFLICT DO NOTHING;
DROP TABLE slicewise.api_key_uses;
ALTER TABLE slicewise.api_keys DROP COLUMN service, DROP COLUMN expires_at;
DELETE FROM slicewise.served_revisions;
INSERT INTO slicewise.served_revisions
VALUES ('0003'), ('0004'), ('0005'), ('0006'), ('0007'), ('0008'), ('0009');
"""


def upgrade() -> None:
    for step in (_KEYS, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
