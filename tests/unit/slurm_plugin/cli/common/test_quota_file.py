"""Tests the file of quotas: what it says, and that all of its mistakes are named together."""

from pathlib import Path

import pytest
from builders.settings import site_settings

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.cli.common.quota_file import read_quota_file
from slicewise.slurm_plugin.rules.quota.quota_file import EXAMPLE, example
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Policy,
    Quota,
    Tenant,
    TenantUpdate,
)

SETTINGS = site_settings(types=["1g.10gb", "3g.40gb"])
HOUR = 3_600_000
MONTHLY = Budget(Period.MONTH, MillisliceSeconds(100 * HOUR))


def read(path: Path, text: str, policy: Policy | None = None) -> tuple[TenantUpdate, ...]:
    file = path / "quotas.toml"
    file.write_text(text)
    updates, faults = read_quota_file(file, policy or {}, SETTINGS)
    faults.check()
    return updates


def refused(path: Path, text: str) -> str:
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE") as error:
        read(path, text)
    return error.value.refusal.message


def test_tables_of_other_names_are_named(tmp_path: Path):
    assert refused(tmp_path, "[vision]\nnominal = 6\n").endswith("Found: [vision].")
    assert refused(tmp_path, "").endswith("and nothing else.")


def test_an_example_for_a_site_names_its_own_tenants_and_types(tmp_path: Path):
    text = example(("bio", "vision"), ("1g.10gb",))
    bio, vision = read(tmp_path, text)
    assert (bio.tenant, bio.type_limits) == ("bio", {"1g.10gb": 2})
    assert vision.tenant == "vision"
    assert vision.budget is not None
    assert '# parent = "vision"' in text
    four = read(tmp_path, example(("a", "b", "c", "d", "e"), ("1g.10gb",)))
    assert [one.tenant for one in four] == ["a", "b", "c", "d"]
    assert (four[2].parent, four[3].removed) == ("b", True)
    dotted = read(tmp_path, example(("bio.vision", "a.b", "c.d"), ("1g.10gb",)))
    assert [one.tenant for one in dotted] == ["bio.vision", "a.b", "c.d"]
    assert dotted[2].parent == "a.b"
    assert example((), ()) == EXAMPLE


def test_the_example_can_be_read(tmp_path: Path):
    vision, nlp, speech, course = read(tmp_path, EXAMPLE)
    assert vision == TenantUpdate(
        "vision",
        nominal_millislices=Millislices(12_000),
        borrowing_limit_millislices=MAX_NOMINAL_MILLISLICES,
        lending_limit_millislices=Millislices(3000),
        weight=2,
        type_limits={"3g.40gb": 2},
        model_limits={},
        type_nominals={"3g.40gb": 1},
    )
    assert nlp.budget == Budget(
        Period.MONTH,
        MillisliceSeconds(1000 * HOUR),
        MAX_BUDGET_MILLISLICE_S,
        MillisliceSeconds(50 * HOUR),
    )
    assert nlp.token_budget == Budget(Period.MONTH, 2_000_000, meter=TOKENS.name)
    assert speech == TenantUpdate("speech", parent="nlp")
    assert course == TenantUpdate("course", removed=True)


def test_what_is_left_out_stays_as_it_is(tmp_path: Path):
    quota = Quota(Millislices(6000), type_limits={"1g.10gb": 3})
    policy = {"vision": Tenant("vision", "", quota, MONTHLY)}
    (update,) = read(
        tmp_path,
        "[tenants.vision]\nlimits = { A100-80GB = 7 }\nbudget = { overdraft = 0.5 }\n",
        policy,
    )
    assert (update.type_limits, update.model_limits) == ({"1g.10gb": 3}, {"A100-80GB": 7000})
    assert update.budget == Budget(
        Period.MONTH,
        MONTHLY.amount,
        overdraft=MillisliceSeconds(HOUR // 2),
    )
    assert (update.nominal_millislices, update.weight) == (None, None)


@pytest.mark.parametrize(("text", "millislices"), [("3.5", 3500), ("0.001", 1), ('"2"', 2000)])
def test_amounts_are_exact(tmp_path: Path, text: str, millislices: int):
    (update,) = read(tmp_path, f"[tenants.a]\nnominal = {text}\n")
    assert update.nominal_millislices == millislices


def test_a_budget_and_a_limit_can_be_taken_away(tmp_path: Path):
    quota = Quota(Millislices(0), type_limits={"1g.10gb": 3})
    text = "[tenants.a]\nbudget = 'none'\nlimits = { '1g.10gb' = 'none' }\n"
    (update,) = read(tmp_path, text, {"a": Tenant("a", "", quota, MONTHLY)})
    assert (update.budget, update.type_limits) == ("off", {})
    assert update.type_nominals is None


def test_a_guarantee_by_type_can_be_taken_away(tmp_path: Path):
    quota = Quota(Millislices(0), type_nominals={"1g.10gb": 3, "3g.40gb": 1})
    text = "[tenants.a]\ntype_nominals = { '1g.10gb' = 'none' }\n"
    (update,) = read(tmp_path, text, {"a": Tenant("a", "", quota)})
    assert (update.type_nominals, update.type_limits) == ({"3g.40gb": 1}, None)
    with pytest.raises(InvalidInputError, match="type_nominals: it must be a table"):
        read(tmp_path, "[tenants.a]\ntype_nominals = 3\n")


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path):
    text = """
[tenants.a]
nominal = true
nominl = 3
weight = 1.5
[tenants.b]
borrowing_limit = "much"
limits = { "9g.90gb" = 1 }
[tenants.c]
budget = { amount = 5 }
[tenants.d]
[tenants.e]
parent = 3
[tenants.f]
remove = true
nominal = 0
[tenants.g]
remove = false
"""
    said = refused(tmp_path, text).splitlines()[1:]
    assert [line.partition("]")[0] for line in said] == [
        "line 2: [tenants.a",
        "line 2: [tenants.a",
        "line 2: [tenants.a",
        "line 6: [tenants.b",
        "line 6: [tenants.b",
        "line 9: [tenants.c",
        "line 11: [tenants.d",
        "line 12: [tenants.e",
        "line 14: [tenants.f",
        "line 17: [tenants.g",
    ]
    assert "nominl (did you mean nominal?)" in said[0]
    assert [line.rpartition("[SW-")[2].removesuffix("]") for line in said] == [
        *("INPUT-FILE", "VALUE", "VALUE", "VALUE", "VALUE", "BUDGET-NONE"),
        *("INPUT-FILE", "VALUE", "INPUT-FILE", "INPUT-FILE"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants.a\n", "line 1"),
        ("", "tables"),
        ("[tenant.a]\nnominal = 1\n", "tables"),
        ("[tenants.a]\nnominal = 1\n[more]\n", "nothing else"),
        ("tenants = 3\n", "tables"),
        ("[tenants]\na = 3\n", "must be a table"),
        ("[tenants.a]\nlimits = 3\n", "must be a table"),
        ("[tenants.a]\nbudget = { perod = 'day' }\n", "did you mean period?"),
        ("[tenants.a]\nnominal = 2026-01-01\n", "neither a number nor text"),
        ("[tenants]\na.nominal = true\n", "\n[tenants.a] nominal"),
        ("\n[ tenants . 'a.b' ]\nnominal = true\n", "line 2: [tenants.a.b]"),
        ("a = " + "[" * 9000, "in tables without end"),
        ("a = " + "9" * 5000, "it is not TOML"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str, said: str):
    assert said in refused(tmp_path, text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(InvalidInputError, match="No such file"):
        read_quota_file(tmp_path / "none.toml", {}, SETTINGS)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        read_quota_file(tmp_path / "latin.toml", {}, SETTINGS)


def test_a_file_without_end_is_refused_before_it_is_read_whole():
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        read_quota_file(Path("/dev/zero"), {}, SETTINGS)
