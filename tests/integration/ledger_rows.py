"""How many rows the ledger has, table by table: that nothing was written."""

import psycopg
from psycopg.sql import SQL, Identifier


def rows_of_every_table(database: str) -> dict[str, int]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'slicewise'"
    with psycopg.connect(database) as connection:
        tables = [name for (name,) in connection.execute(query)]
        count = SQL("SELECT count(*) FROM {}")
        return {
            name: connection.execute(count.format(Identifier("slicewise", name))).fetchone()[0]
            for name in tables
        }
