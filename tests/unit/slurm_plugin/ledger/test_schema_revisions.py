import re
from importlib.resources import files

from alembic.config import Config
from alembic.script import ScriptDirectory

from slicewise.cluster.language.periods import Period
from slicewise.slurm_plugin.ledger import schema_revisions


def test_the_migrations_files_say_the_revisions_as_alembic_knows_them():
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions()]
    assert schema_revisions.revisions() == (schema_revisions.BASE, *reversed(known))
    assert schema_revisions.head() == scripts.get_current_head()


def test_the_newest_migration_of_periods_knows_those_of_the_program():
    folder = files("migrations")
    steps = [*(folder / "versions").iterdir(), *(folder / "sql").iterdir()]
    steps.sort(key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in steps if file.is_file()]
    checks = [re.findall(r"CHECK \(budget_period IN \(([^)]*)\)\)", text) for text in texts]
    *_, newest = filter(None, checks)
    # Its downgrade may have a check, too.
    assert {f"'{period}'" for period in ("off", *Period)} in [
        set(one.split(", ")) for one in newest
    ]
