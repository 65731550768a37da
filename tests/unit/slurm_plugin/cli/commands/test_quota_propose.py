"""Tests tenant-quota propose: what it prints is what tenant-quota apply takes."""

import json
import tomllib
from pathlib import Path

import pytest
from builders.settings import site_settings
from stand_ins.daemon_in_process import answer_from, record_handlers
from stand_ins.slurm_database import LimitLedger
from typer.testing import CliRunner

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.launcher.main import app
from slicewise.slurm_plugin.cli.commands import quota
from slicewise.slurm_plugin.cli.common.quota_file import read_quota_file
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey

pytestmark = pytest.mark.usefixtures("clock")

ASSETS = Path(__file__).parents[4] / "assets"
SETTINGS = site_settings(types=["1g.10gb", "3g.40gb", "7g.80gb"])


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> LimitLedger:
    fake = LimitLedger()
    monkeypatch.setattr(quota, "load_settings", lambda: SETTINGS)
    answer_from(monkeypatch, record_handlers(SETTINGS, fake))
    return fake


def proposed(*words: str, given: str | None = None) -> str:
    argv = ("tenant-quota", "propose", *words)
    result = CliRunner().invoke(app, argv, input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(tmp_path: Path, text: str) -> str:
    (tmp_path / "given").write_text(text)
    argv = ("tenant-quota", "propose", str(tmp_path / "given"))
    with pytest.raises(SlicewiseError) as error:
        CliRunner().invoke(app, argv, catch_exceptions=False)
    return str(error.value)


@pytest.mark.parametrize("name", ["coldfront/sandbox.cfg", "coldfront/allocations.json"])
def test_what_is_proposed_is_read_by_plan_and_not_proposed_again(
    ledger: LimitLedger, tmp_path: Path, name: str
):
    text = proposed(str(ASSETS / name))
    file = tmp_path / "quotas.toml"
    file.write_text(text)
    updates, _ = read_quota_file(file, ledger.tenants.policy(), SETTINGS)
    by_name = {one.tenant: one for one in updates}
    assert by_name["physics"].nominal_millislices == 28_000
    assert by_name["physics"].budget is not None
    assert by_name["lasers"].nominal_millislices == 14_000
    assert by_name["lasers"].borrowing_limit_millislices == 7000
    for one in updates:
        ledger.tenants.change(one, "ada", "")
    again = proposed(str(ASSETS / name))
    assert "there is nothing to set" in again
    assert "[tenants" not in again


def test_the_words_that_a_site_wrote_in_coldfront_count(ledger: LimitLedger):
    text = proposed(str(ASSETS / "coldfront" / "allocations.json"))
    optics = text.partition("[tenants.optics]\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(optics) == [
        'borrowing_limit = "unlimited"',
        'limits = { "3g.40gb" = 2 }',
        "nominal = 6",
    ]


def test_a_gpu_without_a_type_is_what_the_operator_says(ledger: LimitLedger):
    dump = "Cluster - 'c'\nParent - 'root'\nAccount - 'a':GrpTRES=gres/gpu=2\n"
    assert "nominal = 14\n" in proposed("-", given=dump)
    assert "nominal = 3\n" in proposed("-", "--gpu", "1.5", given=dump)


def test_limits_that_slicewise_has_set_itself_are_no_other_tools_wish(ledger: LimitLedger):
    dump = (
        "Cluster - 'c'\nParent - 'root'\n"
        "Account - 'a':GrpTRES=gres/gpu:3g.40gb=2,gres/gpu:1g.10gb=4\n"
    )
    for kind, limit in {"3g.40gb": KnownLimit("", "2"), "1g.10gb": KnownLimit("4", "4")}.items():
        ledger.remembered[LimitKey("account", "a", f"grptres=gres/gpu:{kind}")] = limit
    text = proposed("-", given=dump)
    assert 'nominal = 4\nlimits = { "1g.10gb" = 4 }\n' in text
    ledger.remembered[LimitKey("account", "a", "grptres=gres/gpu:3g.40gb")] = KnownLimit("", "1")
    assert 'limits = { "1g.10gb" = 4, "3g.40gb" = 2 }\n' in proposed("-", given=dump)


def test_names_that_can_be_no_tenants_and_tenants_without_an_account_are_named(
    ledger: LimitLedger, tmp_path: Path
):
    dump = "Cluster - 'c'\nParent - 'root'\nAccount - 'a b':GrpTRES=gres/gpu=2\n"
    file = tmp_path / "quotas.toml"
    file.write_text("[tenants.old]\nnominal = 1\n")
    for one in read_quota_file(file, {}, SETTINGS)[0]:
        ledger.tenants.change(one, "ada", "")
    text = proposed("-", given=dump)
    assert "# 'a b' can't be a tenant: " in text
    assert "# Tenants that are not in it, and stay: old\n" in text
    assert "[tenants" not in text


def test_an_account_with_limits_that_can_not_be_read_is_left_out(ledger: LimitLedger):
    dump = "Cluster - 'c'\nParent - 'root'\nAccount - 'bio':GrpTRES=gres/gpu:3g.40gb=two\n"
    text = proposed("-", given=dump)
    assert "# bio: its limits can't be read: 'GrpTRES=gres/gpu:3g.40gb=two'\n" in text
    assert "[tenants" not in text
    text = proposed(str(ASSETS / "coldfront" / "sandbox.cfg"))
    assert "# typed: its limits can't be read: " in text
    assert "[tenants.typed]" not in text


@pytest.mark.parametrize("other", ["", ",gres/gpu=1"])
def test_what_another_tool_wrote_stays_within_its_comment(ledger: LimitLedger, other: str):
    specs = f"GrpTRES=gres/gpu:a\n[tenants.victim]\n#=5{other}"
    attributes = {"slurm_account_name": "a", "slurm_specs": specs}
    said = [{"allocation_attribute_type": key, "value": text} for key, text in attributes.items()]
    text = proposed("-", given=json.dumps([{"status": "Active", "allocation_attributes": said}]))
    assert r"gpu:a\n[tenants.victim]\n#" in text
    assert list(tomllib.loads(text)["tenants"]) == ["a"]


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("nominal = ", "no TOML"),
        ("nominal = 1 }\\nb = { a = 1", "may say what"),
        ("remove = true", "tenant-quota set"),
        ("nominal = -1", "SW-VALUE"),
        ("nominel = 1", "did you mean nominal"),
    ],
)
def test_wrong_words_in_coldfront_are_named_with_their_account(
    ledger: LimitLedger, tmp_path: Path, own: str, why: str
):
    said = refused(
        tmp_path,
        '[{"status": "Active", "allocation_attributes": ['
        '{"allocation_attribute_type": "slurm_account_name", "value": "a"},'
        f'{{"allocation_attribute_type": "slicewise_quota", "value": "{own}"}}]}}]',
    )
    assert "[tenants.a]" in said
    assert why in said


def test_a_file_that_is_not_there_is_said(ledger: LimitLedger, tmp_path: Path):
    with pytest.raises(SlicewiseError, match="SW-INPUT-FILE"):
        proposed(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/nowhere/dump.cfg", "/nowhere/dump.cfg can't be read: No such file or directory."),
        ("/dev/zero", "/dev/zero has more than 16,000,000 characters."),
    ],
)
def test_a_file_that_is_not_there_or_has_no_end_is_refused(
    ledger: LimitLedger, file: str, said: str
):
    with pytest.raises(SlicewiseError) as error:
        CliRunner().invoke(app, ("tenant-quota", "propose", file), catch_exceptions=False)
    assert error.value.refusal.message == said
