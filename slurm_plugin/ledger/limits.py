"""Remembers Slurm's limits, and which change of policy they contain."""

from collections.abc import Mapping

from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import policy_rows as rows
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.tables import compilations, known_limits
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey


class Limits(LedgerPart):
    """Known limits. They are written before Slurm is told, so that a process which follows one that
    was killed in between knows the earlier values.
    """

    def known(self) -> Mapping[LimitKey, KnownLimit]:
        """What is remembered of every setting in slurmdbd that was ever touched."""
        with reading(self._engine) as connection:
            return reads.known_limits(connection, self._cluster)

    def know(self, known: Mapping[LimitKey, KnownLimit]) -> None:
        """Remember these values, in place of those known for the same settings."""
        if not known:
            return
        values = [
            {"cluster": self._cluster, **rows.known_limit_values(key, known[key])}
            for key in sorted(known)
        ]
        added = insert(known_limits)
        added = added.on_conflict_do_update(
            constraint=known_limits.primary_key,
            set_={"before": added.excluded.before, "last": added.excluded.last},
        )
        with writing(self._engine) as connection:
            connection.execute(added, values)

    def forget(self) -> None:
        """Forget all of them, once everything is as it was before."""
        with writing(self._engine) as connection:
            connection.execute(delete(known_limits).where(known_limits.c.cluster == self._cluster))

    def mark_compiled(self, change_id: int) -> None:
        """Record that Slurm's limits contain that change and every earlier one, unless Slicewise
        was uninstalled meanwhile.
        """
        marked = insert(compilations).values(cluster=self._cluster, change_id=change_id)
        newer = func.greatest(compilations.c.change_id, marked.excluded.change_id)
        marked = marked.on_conflict_do_update(
            index_elements=[compilations.c.cluster],
            set_={"change_id": newer, "compiled_at": func.now()},
            where=compilations.c.change_id != UNINSTALLED_ID,
        )
        with writing(self._engine) as connection:
            connection.execute(marked)

    def mark_uninstalled(self) -> None:
        """Record that Slicewise is uninstalled: no process sets limits before ``mark_wanted``."""
        self._mark(UNINSTALLED_ID)

    def mark_wanted(self) -> None:
        """Record that limits may be set again, and contain no change yet."""
        self._mark(0)

    def _mark(self, change_id: int) -> None:
        marked = insert(compilations).values(cluster=self._cluster, change_id=change_id)
        marked = marked.on_conflict_do_update(
            index_elements=[compilations.c.cluster],
            set_={"change_id": change_id, "compiled_at": func.now()},
        )
        with writing(self._engine) as connection:
            connection.execute(marked)

    def is_uninstalled(self) -> bool:
        """Whether Slicewise was uninstalled and is not wanted again."""
        with reading(self._engine) as connection:
            return reads.compiled_id(connection, self._cluster) == UNINSTALLED_ID

    def compiled(self, change_id: int) -> bool:
        """Whether Slurm's limits contain that change."""
        with reading(self._engine) as connection:
            return reads.compiled_id(connection, self._cluster) >= change_id
