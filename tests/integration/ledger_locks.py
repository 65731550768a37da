"""Waits until one connection to the ledger waits for another."""

import time

import psycopg


def wait_for_a_lock(database: str) -> None:
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with psycopg.connect(database, autocommit=True) as looker:
        while looker.execute(waits).fetchone() == (0,):
            time.sleep(0.01)
