from importlib.resources import files

from alembic.config import Config
from alembic.script import ScriptDirectory

from slurm_plugin.ledger_tables import schema


def test_the_migrations_files_say_the_revisions_as_alembic_knows_them():
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions()]
    assert schema.revisions() == (schema.BASE, *reversed(known))
    assert schema.head() == scripts.get_current_head()
