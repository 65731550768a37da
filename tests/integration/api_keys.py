"""Takes all API keys out of the ledger after a test: other tests send to these tenants without."""

from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
from psycopg.sql import SQL, Identifier
from waiting import until

from slicewise.sandbox.cluster import Sandbox

_TABLES = (
    *("api_key_revocations", "api_key_blocks", "api_key_uses", "api_keys", "api_key_openings"),
    "request_limits",
)


def forget_keys(sandbox: Sandbox, *tenants: str) -> None:
    """Forget every key, and wait until the gateway asks for none of these tenants' any more."""
    url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    with psycopg.connect(url) as connection:
        # Triggers refuse to delete these rows, to everybody.
        connection.execute("SET session_replication_role = replica")
        for table in _TABLES:
            connection.execute(SQL("DELETE FROM {}").format(Identifier("slicewise", table)))
    until(lambda: all(not _is_closed(sandbox, tenant) for tenant in tenants))


def _is_closed(sandbox: Sandbox, tenant: str) -> bool:
    try:
        with urlopen(f"{sandbox.layout.gateway_url}/{tenant}/none/v2", timeout=60):  # noqa: S310
            return False
    except HTTPError as error:
        return error.code == 401
