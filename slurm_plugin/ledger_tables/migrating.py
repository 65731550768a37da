"""Runs the migrations by Alembic."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def migrate(connection: Connection, target: str, *, backwards: bool) -> None:
    """Migrate to the revision ``target``, upwards or ``backwards``."""
    config = Config()
    # The package's own place: the same in a clone and in an installed wheel.
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    (command.downgrade if backwards else command.upgrade)(config, target)
