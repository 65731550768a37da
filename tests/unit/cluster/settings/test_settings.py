"""Tests slicewise.toml: the shipped example is valid, and mistakes name their key."""

import re
from fractions import Fraction
from pathlib import Path

import pytest
from pydantic import ValidationError

from slicewise.cluster.language.billing import MILLISLICES
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import DaemonSettings, DatabaseSettings, host_and_port
from slicewise.cluster.settings.log import LogSettings
from slicewise.cluster.settings.read import database_url, load_settings

MINIMAL = """
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
weight = "1.5"
types = ["1g.10gb", "3g.40gb"]
"""
BILLED = MINIMAL.replace("[cluster]\n", "[cluster]\nbilling_per_slice = {}\n")


def test_costs_are_exact_and_weighted(tmp_path: Path) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(MINIMAL)
    settings = load_settings(place)
    assert settings.gpus["A100-80GB"].weight == Fraction(3, 2)
    assert settings.costs == {"1g.10gb": 1500, "3g.40gb": 5250}


def test_a_weight_that_would_be_computed_for_hours_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(MINIMAL.replace('"1.5"', '"1e999999999"'))
    with pytest.raises(InvalidInputError, match="write a number such as"):
        load_settings(place)


def test_whole_gpus_have_a_price_and_models_that_can_not_be_cut_any_name(tmp_path: Path) -> None:
    place = tmp_path / "slicewise.toml"
    more = "whole = ['a100']\n[gpus.'L40S']\nweight = '1/2'\nwhole = ['l40s', 'nvidia_l40s']\n"
    place.write_text(MINIMAL + more)
    settings = load_settings(place)
    assert settings.costs == {
        "1g.10gb": 1500,
        "3g.40gb": 5250,
        "a100": 10_500,
        "l40s": 3500,
        "nvidia_l40s": 3500,
    }
    assert settings.models["a100"] == "A100-80GB"
    assert settings.models["l40s"] == "L40S"
    assert settings.whole_types == {"A100-80GB": "a100", "L40S": "l40s"}
    assert settings.boards_by_type.keys() == settings.whole_boards.keys() == {"1g.10gb", "3g.40gb"}
    assert settings.whole_boards["3g.40gb"] == WholeBoard(7, Millislices(10_500))
    largest = settings.boards_by_type["1g.10gb"].profiles["7g.80gb"]
    assert settings.memory_mib["a100"] == largest.memory_mib is not None
    assert settings.memory_mib["l40s"] is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (MINIMAL + "whole = ['1g.10gb']\n", "1g.10gb is no whole GPU"),
        (MINIMAL + "[gpus.'L40S']\n", "name at least one GRES type"),
        (MINIMAL + "[qos]\nslicewise_nlp = 'high'\n", "the name of a QOS of the site"),
        (MINIMAL + "[qos]\n'a b' = 'high'\n", "the name of a QOS of the site"),
        (MINIMAL + "[qos]\nurgent = 'top'\n", "urgent"),
        (MINIMAL + "[qos]\nurgent = 'low'\nUrgent = 'high'\n", "one QOS is named twice"),
        (MINIMAL + "[gpus.'L40S']\ntypes = ['l40s']\n", "L40S"),
        (MINIMAL.replace('"1.5"', '"heavy"'), "weight"),
        (MINIMAL.replace('"1.5"', '"0"'), "weight"),
        (MINIMAL + "[gpus.'H100-80GB']\ntypes = ['1g.10gb']\n", "1g.10gb is listed for two models"),
        (MINIMAL.replace('"gpu"', ""), "cluster.partitions"),
        (MINIMAL.replace("A100-80GB", "A100-81GB"), "A100-81GB"),
        (MINIMAL.replace("3g.40gb", "3g.41gb"), "3g.41gb"),
        (MINIMAL + "[gateway]\nbackend = 3\n", "gateway.backend"),
        (
            MINIMAL + "[lending]\ngrace = 5\n",
            r"lending\.grace: there is no such key, but there is grace_s; keys of \[lending\]: gra",
        ),
        (
            MINIMAL + "type = ['1g.10gb']\n",
            r"gpus\.A100-80GB\.type: there is no such key, but there is types; keys of \[gpus",
        ),
        (MINIMAL + "[engines.own]\ncomand = 'x'\n", "engines.own.comand: .* there is command;"),
        (MINIMAL + "[lendin]\n", "lendin: there is no such key, but there is lending; keys: clu"),
        (MINIMAL + "[gateway]\nbuffer_kib = 257\n", "gateway.buffer_kib"),
        (MINIMAL + "[daemon]\nmode = 'strict'\n", "daemon.mode"),
        (MINIMAL + "[daemon]\nslurm = 'slurmrestd'\n", "say in slurmrestd where it is"),
        (MINIMAL + "[daemon]\nslurmrestd = 'head:6820'\n", "daemon.slurmrestd"),
        # Whoever listens there would get SlurmUser's token.
        (MINIMAL + "[daemon]\nslurmrestd = 'http://127.0.0.1:6820'\n", "daemon.slurmrestd"),
        (MINIMAL.replace('name = "c"', ""), r"cluster\.name: missing\."),
        (MINIMAL + "[ledger]\ntime_zone = 'Europe/Atlantis'\n", "ledger.time_zone: write a time"),
        (MINIMAL + "[ledger]\ntime_zone = '../../etc/passwd'\n", "ledger.time_zone: write a time"),
        (MINIMAL + "[ledger]\nnode_failure = 'nobody'\n", "ledger.node_failure"),
        (MINIMAL + "[ledger]\nby_hand = 'keep'\n", "ledger.by_hand"),
        (BILLED.format('"0"'), "cluster.billing_per_slice"),
        (BILLED.format("1000002"), "cluster.billing_per_slice"),
        (BILLED.format("'many'"), "cluster.billing_per_slice"),
        (MINIMAL + "[engines.Own]\ncommand = 'x'\n", r"engines\.Own"),
        (MINIMAL + "[triton]\ncommand = 'x'\n", "triton: there is no such key.* engines,"),
        ("[cluster", "not TOML"),
    ],
)
def test_mistakes_name_their_key(tmp_path: Path, text: str, named: str) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(text)
    with pytest.raises(InvalidInputError, match=named):
        load_settings(place)


@pytest.mark.parametrize(
    ("per_slice", "says"),
    [
        # 1.5 slices and 5.25 at that weight: multiples of 4/3 make both whole.
        ("1000", ""),
        ("8", ""),
        ("'4/3'", ""),
        ("3", "3 would bill 9/2 for 1g.10gb, which costs 1.5 slices, but Slurm limits whole"),
        ("3", "the nearest values that bill whole numbers for all types: 8/3 and 4."),
        ("2", "2 would bill 21/2 for 3g.40gb, which costs 5.25 slices"),
        ("1", "the nearest values that bill whole numbers for all types: 4/3."),
    ],
)
def test_slurm_bills_whole_numbers(tmp_path: Path, per_slice: str, says: str) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(BILLED.format(per_slice))
    if not says:
        settings = load_settings(place)
        assert {settings.billing.exact(one).denominator for one in settings.costs.values()} == {1}
        return
    with pytest.raises(InvalidInputError, match=re.escape(says)) as caught:
        load_settings(place)
    assert caught.value.refusal.code == "SW-SETTINGS"
    assert "cluster.billing_per_slice" in str(caught.value)


def test_a_slice_is_a_thousand_unless_the_site_says_so(tmp_path: Path) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(MINIMAL)
    assert load_settings(place).billing == MILLISLICES


def test_a_qos_of_the_site_stands_for_a_class(tmp_path: Path) -> None:
    path = tmp_path / "slicewise.toml"
    path.write_text(MINIMAL + "[qos]\nUrgent = 'high'\n")
    assert load_settings(path).qos == {"urgent": "high"}


def test_lines_are_logfmt_from_info_on_unless_the_site_or_an_option_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "slicewise.toml"
    path.write_text(MINIMAL)
    log = load_settings(path).log
    assert (log.format, log.level, log.at_level(None)) == ("logfmt", "INFO", log)
    path.write_text(MINIMAL + '[log]\nformat = "json"\nlevel = "warning"\n')
    log = load_settings(path).log
    assert (log.format, log.level) == ("json", "WARNING")
    assert log.at_level("debug") == LogSettings(format="json", level="DEBUG")
    with pytest.raises(InvalidInputError, match="--log-level: 'loud'") as refused:
        log.at_level("loud")
    assert refused.value.refusal.code == "SW-USAGE"


def test_absent_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="SLICEWISE_CONFIG"):
        load_settings(tmp_path / "none.toml")


def test_database_url_has_no_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLICEWISE_DATABASE_URL", raising=False)
    with pytest.raises(InvalidInputError, match="SW-SETTINGS"):
        database_url(DatabaseSettings())
    (tmp_path / "url").write_text("postgresql:///a\n")
    assert database_url(DatabaseSettings(url_file=tmp_path / "url")) == "postgresql:///a"
    (tmp_path / "url").write_text("\n")
    with pytest.raises(InvalidInputError, match=r"database\.url_file .*url: it is empty"):
        database_url(DatabaseSettings(url_file=tmp_path / "url"))
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql:///b")
    assert database_url(DatabaseSettings(url_file=tmp_path / "url")) == "postgresql:///b"


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (
            PermissionError(13, "Permission denied"),
            "a command for operators: only they may read the file. For your tenants: slicewise why",
        ),
        (FileNotFoundError(2, "No such file or directory"), "SLICEWISE_DATABASE_URL"),
        (UnicodeDecodeError("utf-8", b"\xffsecret", 0, 1, "invalid"), "SLICEWISE_DATABASE_URL"),
    ],
)
def test_who_can_not_read_the_url_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, hint: str
) -> None:
    def read_text(_path: Path, encoding: str) -> str:
        raise failure

    monkeypatch.delenv("SLICEWISE_DATABASE_URL", raising=False)
    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(InvalidInputError) as caught:
        database_url(DatabaseSettings(url_file=Path("/etc/slicewise/url")))
    refusal = caught.value.refusal
    assert refusal.code == "SW-SETTINGS"
    assert "/etc/slicewise/url" in refusal.message
    assert hint in refusal.hint
    assert "secret" not in refusal.text()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("head:6830", ("head", 6830)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert DaemonSettings(listen=text).listen == text
    assert host_and_port(text) == parts


@pytest.mark.parametrize(
    "text", ["head", ":6830", "head:", "head:0", "head:65536", "head:x", "head:٣"]
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT"):
        DaemonSettings(connect=text)


def test_shared_gpus_cost_what_the_settings_say(tmp_path: Path) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(MINIMAL + "[shared]\nshard_millislices = 875\n")
    assert load_settings(place).costs == {"1g.10gb": 1500, "3g.40gb": 5250, "shard": 875}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[shared]\nshard_millislices = 0\n", "shared.shard_millislices"),
        ("[admission]\nuntyped = 'shard'\n", "admission.untyped"),
        ("[gpus.L40S]\nwhole = ['mps']\n", "gpus: type mps"),
    ],
)
def test_what_shared_gpus_may_not_be(tmp_path: Path, more: str, said: str) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(MINIMAL + more)
    with pytest.raises(InvalidInputError, match=f"{said}.*SW-SETTINGS"):
        load_settings(place)
