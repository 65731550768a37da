"""Bring the ledger's schema up to date, or back: Alembic without an alembic.ini."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from cluster.errors import InvalidInputError
from slurm_plugin.ledger.connection import ledger_engine, reading, translated
from slurm_plugin.ledger.tables import SCHEMA

BASE = "base"
"""The revision before the first: no tables."""


def _config() -> Config:
    config = Config()
    # The package's own place: the same in a clone and in an installed wheel.
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return config


def head() -> str:
    """The newest revision that this version of the program knows."""
    return ScriptDirectory.from_config(_config()).get_current_head() or BASE


def revisions() -> tuple[str, ...]:
    """Every revision, the oldest first, beginning with ``base``."""
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return (BASE, *reversed([script.revision for script in scripts]))


def current(engine: Engine) -> str:
    """The revision that the database is at; ``base`` for an empty one."""
    with reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
        return context.get_current_revision() or BASE


def current_of(url: str) -> str:
    """The same of the database at ``url``."""
    return current(ledger_engine(url))


def require_current(engine: Engine) -> None:
    """Raises InvalidInputError: SW-DATABASE-OLD before head, SW-DATABASE-NEW if it is unknown."""
    found = current(engine)
    if found == head():
        return
    if found in revisions():
        raise InvalidInputError(
            "SW-DATABASE-OLD",
            f"The ledger's database is at revision {found}, this version needs {head()}.",
            "Run: slicewise db upgrade",
        )
    raise InvalidInputError(
        "SW-DATABASE-NEW",
        f"The ledger's database is at revision {found}, which this version does not know.",
        "A newer version of slicewise upgraded it: use that one.",
    )


def upgrade(url: str) -> tuple[str, str]:
    """Bring the database to ``head``; returns the revisions before and after."""
    return _migrate(url, head())


def downgrade(url: str, revision: str) -> tuple[str, str]:
    """Go back to an older revision; returns the revisions before and after.

    Tables that the older revision lacks are lost with what is in them. Raises InvalidInputError
    (SW-REVISION) for a revision that does not exist or is newer than the database.
    """
    engine = ledger_engine(url)
    known = revisions()
    older = known[: known.index(found) + 1] if (found := current(engine)) in known else ()
    if revision not in older:
        raise InvalidInputError(
            "SW-REVISION",
            f"{revision!r} is no revision before the database's, {found}.",
            f"Choose one of: {', '.join(older) or 'none'}.",
        )
    return _migrate(url, revision)


def _migrate(url: str, target: str) -> tuple[str, str]:
    engine = ledger_engine(url)
    before = current(engine)
    if before not in revisions():
        require_current(engine)
    backwards = revisions().index(target) < revisions().index(before)
    config = _config()
    with translated(engine), engine.connect() as connection:
        config.attributes["connection"] = connection
        (command.downgrade if backwards else command.upgrade)(config, target)
    return before, current(engine)
