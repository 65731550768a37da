"""Runs the migrations by Alembic."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

from migrations import index_of_payers


def migrate(engine: Engine, target: str, *, backwards: bool) -> None:
    """Migrate to the revision ``target``, upwards or ``backwards``."""
    if not backwards:
        with engine.connect() as connection:
            index_of_payers.build(connection)
    config = Config()
    # The package's own place: the same in a clone and in an installed wheel.
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        (command.downgrade if backwards else command.upgrade)(config, target)
