"""Tests the ledger's URL: an ambiguous one is refused, and no part of it is shown."""

import pytest
from sqlalchemy.exc import OperationalError

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.runtime.database import (
    DatabasePlace,
    database_place,
    postgres_engine,
    translated,
)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://vision:geh@eim@db/ledger",
        "postgresql://vision:a@geheim/x@db/ledger",
        "postgresql://vision:a@geheim?x@db/ledger",
        "postgresql://vi/sion:geheim@db/ledger",
        "postgresql://vision:x/geheim/ledger",
        "postgresql://db:geheim/ledger",
        "mysql://vision:geheim@db/ledger",
        "geheim",
        "",
    ],
)
def test_a_url_that_can_not_be_read_is_not_shown(url: str):
    with pytest.raises(InvalidInputError) as caught:
        postgres_engine(url)
    refusal = caught.value.refusal
    assert refusal.code == "SW-SETTINGS"
    assert not {"geh", "eim", "geheim", "vision"} & set(refusal.text().replace("@", " ").split())
    assert "geheim" not in refusal.text()
    assert "%40" in refusal.hint


@pytest.mark.parametrize(
    ("url", "host", "password"),
    [
        ("postgresql://vision:geh%40eim@db/ledger", "db", "geh@eim"),
        ("postgresql://vision@/ledger?host=/tmp/a%40b", None, None),
        ("postgresql:///ledger", None, None),
    ],
)
def test_a_url_that_can_be_read(url: str, host: str | None, password: str | None):
    parsed = postgres_engine(url).url
    assert (parsed.host, parsed.password, parsed.database) == (host, password, "ledger")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        (
            "postgresql://vision:geheim@db:6543/ledger",
            DatabasePlace("db", "6543", "ledger", "vision"),
        ),
        (
            "postgresql://vision:geheim@/?host=/run/postgresql",
            DatabasePlace("/run/postgresql", "5432", "vision", "vision"),
        ),
        ("postgresql:///ledger", DatabasePlace("pg", "5433", "ledger", "olga")),
    ],
)
def test_a_url_says_which_database_it_is_and_hides_the_password(
    monkeypatch: pytest.MonkeyPatch, url: str, place: DatabasePlace
):
    """No command and no line of the log did, so that the wrong one was used unseen."""
    monkeypatch.delenv("PGDATABASE", raising=False)
    if "@" not in url:
        for name, value in (("PGHOST", "pg"), ("PGPORT", "5433"), ("PGUSER", "olga")):
            monkeypatch.setenv(name, value)
    assert database_place(url) == place
    assert "geheim" not in place.text()
    assert f"database '{place.database}' at {place.host}:{place.port}" in place.text()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('FATAL:  password authentication failed for user "olga"', "SW-DATABASE-DOWN"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "olga"', "SW-DATABASE-DOWN"),
        ('FATAL:  database "ledgre" does not exist', "SW-DATABASE-DOWN"),
        ('FATAL:  role "olga" is not permitted to log in', "SW-DATABASE-DOWN"),
        ("FATAL:  the database system is starting up", "SW-DATABASE-DOWN"),
        ("FATAL:  sorry, too many clients already", "SW-DATABASE-CONNECTIONS"),
        ('FATAL:  too many connections for role "reader"', "SW-DATABASE-CONNECTIONS"),
        ("Connection refused", "SW-DATABASE-DOWN"),
        ('could not translate host name "db": does not exist', "SW-DATABASE-DOWN"),
    ],
)
def test_a_server_that_refuses_the_login_is_not_one_that_is_down(said: str, code: str):
    engine = postgres_engine("postgresql://olga:s3cr3t@db/ledger")
    with pytest.raises(UnreachableError, match=code) as raised, translated(engine):
        raise OperationalError("", {}, Exception(f"connection to server failed: {said} s3cr3t"))
    assert "s3cr3t" not in str(raised.value)
