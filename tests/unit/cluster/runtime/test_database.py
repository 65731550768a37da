"""Tests the ledger's URL: an ambiguous one is refused, and no part of it is shown."""

import pytest

from cluster.language.errors import InvalidInputError
from cluster.runtime.database import postgres_engine


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
    assert refusal.code == "SW-DATABASE-URL"
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
