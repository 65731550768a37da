"""slicewise.toml: the shipped example is right, and mistakes name their key."""

from fractions import Fraction
from pathlib import Path

import pytest

from cluster.errors import InvalidInputError
from cluster.settings import DatabaseSettings, database_url, load_settings

MINIMAL = """
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
weight = "1.5"
types = ["1g.10gb", "3g.40gb"]
"""


def test_costs_are_exact_and_weighted(tmp_path: Path) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(MINIMAL)
    settings = load_settings(place)
    assert settings.gpus["A100-80GB"].weight == Fraction(3, 2)
    assert settings.costs == {"1g.10gb": 1500, "3g.40gb": 5250}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (MINIMAL.replace('"1.5"', '"heavy"'), "weight"),
        (MINIMAL.replace('"1.5"', '"0"'), "weight"),
        (MINIMAL + "[gpus.'H100-80GB']\ntypes = ['1g.10gb']\n", "1g.10gb stands under two models"),
        (MINIMAL.replace('"gpu"', ""), "cluster.partitions"),
        (MINIMAL.replace("A100-80GB", "A100-81GB"), "A100-81GB"),
        (MINIMAL.replace("3g.40gb", "3g.41gb"), "3g.41gb"),
        (MINIMAL + "[gateway]\nbackend = 3\n", "gateway.backend"),
        (MINIMAL + "[daemon]\nmode = 'strict'\n", "daemon.mode"),
        ("[cluster", "not TOML"),
    ],
)
def test_mistakes_name_their_key(tmp_path: Path, text: str, named: str) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(text)
    with pytest.raises(InvalidInputError, match=named):
        load_settings(place)


def test_absent_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="SLICEWISE_CONFIG"):
        load_settings(tmp_path / "none.toml")


def test_database_url_has_no_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLICEWISE_DATABASE_URL", raising=False)
    with pytest.raises(InvalidInputError, match="SW-DATABASE-URL"):
        database_url(DatabaseSettings())
    (tmp_path / "url").write_text("postgresql:///a\n")
    assert database_url(DatabaseSettings(url_file=tmp_path / "url")) == "postgresql:///a"
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql:///b")
    assert database_url(DatabaseSettings(url_file=tmp_path / "url")) == "postgresql:///b"
