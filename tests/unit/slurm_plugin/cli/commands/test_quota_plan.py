"""Tests what tenant-quota apply and tenant-quota loans print, with small Slurm and ledger data."""

import asyncio
import json
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path

import pytest
from builders.settings import site_settings
from builders.tenants import tenant
from stand_ins.daemon_in_process import answer_from
from stand_ins.scripted import sync_of
from stand_ins.slurm_database import LimitLedger, Row, SlurmDatabase
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.jobs import StepView
from slicewise.cluster.language.slurm.interface import Submission
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import plain
from slicewise.launcher.main import app
from slicewise.slurm_plugin.api import tenant_desk
from slicewise.slurm_plugin.api.desks import operators_handlers
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.cli.commands import quota, quota_plan
from slicewise.slurm_plugin.common.quota_file_requests import MOST_BYTES, QuotaFileRequest
from slicewise.slurm_plugin.common.tenant_requests import LoansAnswer, LoansRequest
from slicewise.slurm_plugin.quota_cycle.compile import look
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding
from slicewise.slurm_plugin.rules.quota.tenants import changed_together
from slicewise.slurm_plugin.rules.quota.types import (
    Loan,
    LoanChange,
    LoanTerm,
    Policy,
    QuotaChange,
    Recall,
    TenantUpdate,
)
from slicewise.slurm_plugin.rules.services.orders import Ordered, ServiceKey

pytestmark = pytest.mark.usefixtures("clock")

SETTINGS = site_settings(types=["1g.10gb", "3g.40gb"], lending={"grace_s": 60, "term_s": 600})
NOON = 1_795_348_800


class Slurm:
    """With accounts, and nothing that runs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._accounting = SlurmDatabase(rows)

    def __getattr__(self, name: str) -> object:
        return getattr(self._accounting, name)

    async def clock_s(self, _: float) -> float:
        return float(NOON)

    async def steps(self, _: object) -> tuple[StepView, ...]:
        return ()

    async def submissions(self, _arrays: Collection[int]) -> Mapping[int, Submission]:
        return {}


class FakeLedger(LimitLedger):
    """What was written stays; every change is in force at once."""

    lent_since: tuple[LoanTerm, ...] = ()
    lent_before: tuple[LoanChange, ...] = ()
    recalled: tuple[Recall, ...] = ()
    set_meanwhile: Policy = {}  # noqa: RUF012 -- as a default
    slurm: Slurm

    def holdings(self, since_s: int) -> tuple[Holding, ...]:
        return ()

    def standing(self) -> Mapping[ServiceKey, Ordered]:
        return {}

    def not_over(self) -> tuple[object, ...]:
        return ()

    def recalls(self) -> tuple[Recall, ...]:
        return self.recalled

    def terms(self) -> tuple[LoanTerm, ...]:
        return self.lent_since

    def history(self, _: str, most: int, before: int | None = None) -> tuple[LoanChange, ...]:
        there = (one for one in self.lent_before if before is None or one.change_id < before)
        return tuple(islice(there, most))

    def change_together(
        self,
        updates: Sequence[TenantUpdate],
        author: str,
        reason: str,
        _amend: Callable[..., object],
        judge: Callable[[Policy, Policy], None],
    ) -> tuple[QuotaChange, ...]:
        self.shown = {**self.shown, **self.set_meanwhile}
        judge(self.shown, changed_together(self.shown, updates)[0])
        for update in updates:
            self.change(update, author, reason)
        return tuple(QuotaChange(1, one, author, reason, 0) for one in updates)

    def compiled(self, _change_id: int) -> bool:
        return True


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> FakeLedger:
    fake = FakeLedger()
    rows = [
        Row("physics", parent="root"),
        Row("optics", parent="physics"),
        Row("bio", parent="root"),
    ]

    for module in (quota, quota_plan):
        monkeypatch.setattr(module, "load_settings", lambda: SETTINGS)
    fake.slurm = slurm = Slurm(rows)
    cluster_state = sync_of(slurm)  # type: ignore[arg-type]
    asyncio.run(cluster_state.turn())
    reads = Reads(SETTINGS, slurm, fake, cluster_state)  # type: ignore[arg-type]
    given = SETTINGS, slurm, fake, cluster_state, reads
    answer_from(monkeypatch, operators_handlers(*given))  # type: ignore[arg-type]
    return fake


@pytest.fixture
def quotas(tmp_path: Path) -> Path:
    file = tmp_path / "quotas.toml"
    file.write_text("[tenants.optics]\nnominal = 3\n[tenants.physics]\nnominal = 7\n")
    return file


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ("tenant-quota", *words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> str:
    with pytest.raises(SlicewiseError) as error:
        CliRunner().invoke(app, ("tenant-quota", *words), catch_exceptions=False)
    return str(error.value)


def test_a_plan_says_what_would_change_and_changes_nothing(ledger: FakeLedger, quotas: Path):
    text = said("apply", str(quotas), "--dry-run")
    assert "physics: nominal 7 slices" in text
    assert "new → 3" in text
    assert "It would harm no job or tenant." in text
    assert "account  optics" in text
    assert "Nothing was changed." in text
    assert text.endswith(f"slicewise simulate site.zip --change {quotas}\n")
    assert (ledger.shown, ledger.authors) == ({}, [])


def test_a_plan_as_values(ledger: FakeLedger, quotas: Path):
    said("apply", str(quotas))
    quotas.write_text("[tenants.physics]\nnominal = 28\n")
    found = json.loads(said("apply", str(quotas), "--dry-run", "--json"))
    physics, optics = found["change"]["tenants"]
    assert (physics["tenant"], optics["depth"]) == ("physics", 1)
    assert found["change"]["unchanged"] == 0
    assert physics["before"]["nominal_millislices"] == 7000
    assert physics["after"]["limit_millislices"] == 14_000
    (impact,) = found["change"]["harms"]
    assert (impact["kind"], impact["amount_millislices"]) == ("overcommitted", 14_000)
    assert ["modify", "account"] in [command[:2] for command in found["commands"]]
    assert (found["applied"], found["change"]["loans"]) == (False, [])


def test_new_tenants_stand_where_their_accounts_do(ledger: FakeLedger, quotas: Path):
    assert "in force in Slurm" in said("apply", str(quotas), "--reason", "new")
    assert {name: one.parent for name, one in ledger.shown.items()} == {
        "physics": "",
        "optics": "physics",
    }


def test_what_was_planned_is_what_compiling_then_finds(ledger: FakeLedger, quotas: Path):
    quotas.write_text(quotas.read_text() + "limits = { '3g.40gb' = 1 }\n")
    planned = json.loads(said("apply", str(quotas), "--json"))
    assert planned["applied"]
    seen = asyncio.run(look(ledger.slurm, ledger, SETTINGS))  # type: ignore[arg-type]
    assert planned["differences"] == plain(seen.differences)


def test_what_is_refused_is_said_of_every_tenant(ledger: FakeLedger, quotas: Path):
    quotas.write_text(
        "[tenants.optics]\nnominal = 9\n[tenants.physics]\nnominal = 7\n"
        "[tenants.nobody]\nnominal = 1\n[tenants.bio]\nweight = 0\n"
    )
    text = refused("apply", str(quotas))
    for code in ("SW-INPUT-FILE", "SW-QUOTA-TREE", "SW-TENANT-UNKNOWN", "SW-VALUE"):
        assert f"[{code}]" in text
    assert ledger.shown == {}


def test_a_bad_table_does_not_hide_that_the_others_are_right(ledger: FakeLedger, quotas: Path):
    lines = [
        *("# ours", "[tenants.physics]", "nominal = 7", "", "# gone since May", "[tenants.nobody]"),
        *("nominal = 1", "limits = { '1g.10gb' = 2 }", "", "# kept", "[tenants.bio]", "weight = 0"),
        *("", "[tenants.optics]", "nominal = 3"),
    ]
    quotas.write_text("\n".join(lines))
    text = refused("apply", str(quotas))
    assert "line 6: [tenants.nobody] Slurm has no account 'nobody'" in text
    assert "line 11: [tenants.bio] " in text
    right = "The other 2 are right. Without lines 6 to 8, 11 to 12 it would set:\n"
    assert right + "physics: nominal 7 slices\noptics: nominal 3 slices" in text
    assert ledger.shown == {}
    quotas.write_text("\n".join(lines[:5] + lines[8:10] + lines[12:]))
    said("apply", str(quotas))
    assert set(ledger.shown) == {"physics", "optics"}


def test_what_depends_on_a_bad_table_is_not_right(ledger: FakeLedger, quotas: Path):
    quotas.write_text(
        "[tenants.physics]\nnominal = 'much'\n[tenants.optics]\nparent = 'physics'\nnominal = 1\n"
        "[tenants.bio]\nnominal = 2\n"
    )
    text = refused("apply", str(quotas), "--dry-run")
    assert "line 3: [tenants.optics] " in text
    assert text.partition("it would set:\n")[2].startswith("bio: nominal 2 slices")


@pytest.mark.parametrize("name", ["Optics", "OPTICS", '"optICS"'])
def test_accounts_are_named_in_any_case(ledger: FakeLedger, quotas: Path, name: str):
    """As with sbatch -A: Slurm keeps them in small letters."""
    optics = f"[tenants.{name}]\nparent = 'BIO'\nnominal = 3\n"
    quotas.write_text(f"[tenants.Bio]\nnominal = 7\n{optics}")
    said("apply", str(quotas))
    assert {one.name: one.parent for one in ledger.shown.values()} == {"bio": "", "optics": "bio"}


def test_two_tables_of_one_account_are_refused(ledger: FakeLedger, quotas: Path):
    quotas.write_text(
        "[tenants.optics]\nnominal = 3\n[tenants.bio]\nnominal = 1\n[tenants.Optics]\nnominal = 4\n"
    )
    text = refused("apply", str(quotas))
    assert "line 1: [tenants.optics] optics and Optics, lines 1 and 5, are one account." in text
    assert "Without lines 1 to 2, 5 to 6 it would set:\nbio: nominal 1 slice" in text
    assert ledger.shown == {}
    quotas.write_text("[tenants]\nbio.nominal = 1\nBIO.nominal = 2\n")
    assert "bio and BIO are one account." in refused("apply", str(quotas), "--dry-run")


def test_tenants_are_moved_and_removed_together_with_all_else(ledger: FakeLedger, quotas: Path):
    quotas.write_text(
        "[tenants.physics]\nnominal = 7\n[tenants.optics]\nnominal = 3\n[tenants.bio]\nweight = 2\n"
    )
    said("apply", str(quotas))
    quotas.write_text(
        "[tenants.physics]\nremove = true\n[tenants.optics]\nparent = 'bio'\nnominal = 1\n"
    )
    text = said("apply", str(quotas), "--dry-run")
    assert "physics: removed" in text
    assert "below bio (was below physics)" in text
    assert "physics (removed)" in text
    assert "sacctmgr modify account where name=optics cluster=c set parent=bio" in text
    assert set(ledger.shown) == {"physics", "optics", "bio"}
    found = json.loads(said("apply", str(quotas), "--json"))
    assert [one["tenant"] for one in found["change"]["tenants"]] == ["bio", "optics", "physics"]
    assert found["change"]["tenants"][2]["after"] is None
    assert {name: one.parent for name, one in ledger.shown.items()} == {
        "bio": "",
        "optics": "bio",
    }


def test_who_is_below_another_is_shown_below_it(ledger: FakeLedger, quotas: Path):
    said("apply", str(quotas))
    quotas.write_text("[tenants.optics]\nnominal = 2\n")
    lines = said("apply", str(quotas), "--dry-run").splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["physics", "optics"]
    assert "other" not in lines[4]


def test_who_has_tenants_below_it_is_not_removed_alone(ledger: FakeLedger, quotas: Path):
    said("apply", str(quotas))
    quotas.write_text("[tenants.physics]\nremove = true\n[tenants.bio]\nremove = true\n")
    text = refused("apply", str(quotas))
    assert "[tenants.physics] Tenant 'physics' has tenants below it: optics" in text
    assert "SW-TENANT-UNKNOWN" in text
    assert set(ledger.shown) == {"physics", "optics"}


def test_a_new_tenant_stands_where_the_file_says(ledger: FakeLedger, quotas: Path):
    quotas.write_text("[tenants.optics]\nparent = 'bio'\nnominal = 1\n[tenants.bio]\nnominal = 2\n")
    said("apply", str(quotas))
    assert {name: one.parent for name, one in ledger.shown.items()} == {
        "bio": "",
        "optics": "bio",
    }


def test_quotas_beyond_the_cluster_are_applied_only_if_that_is_meant(
    ledger: FakeLedger, quotas: Path
):
    quotas.write_text("[tenants.bio]\nnominal = 15\n")
    assert "without --dry-run, with --overcommit" in said("apply", str(quotas), "--dry-run")
    assert "SW-QUOTA-CAPACITY" in refused("apply", str(quotas))
    assert ledger.shown == {}
    assert "Jobs and tenants that it would harm" in said("apply", str(quotas), "--overcommit")
    assert ledger.shown["bio"].quota.nominal_millislices == 15_000


def test_a_quota_set_since_the_plan_counts_for_what_the_cluster_has(
    ledger: FakeLedger, quotas: Path
):
    ledger.set_meanwhile = {"physics": tenant("physics", 7000)}
    quotas.write_text("[tenants.bio]\nnominal = 8\n")
    assert "SW-QUOTA-CAPACITY" in refused("apply", str(quotas))
    assert "bio" not in ledger.shown
    said("apply", str(quotas), "--overcommit")
    assert ledger.shown["bio"].quota.nominal_millislices == 8000


def test_more_instances_than_there_are_are_guaranteed_only_if_that_is_meant(
    ledger: FakeLedger, quotas: Path
):
    text = "[tenants.bio]\nnominal = 9\ntype_nominals = { '1g.10gb' = COUNT }\n"
    quotas.write_text(text.replace("COUNT", "8"))
    shown = said("apply", str(quotas), "--dry-run")
    assert "8 instances of 1g.10gb (the cluster has 7)" in " ".join(shown.split())
    assert "without --dry-run, with --overcommit" in shown
    assert "SW-QUOTA-CAPACITY" in refused("apply", str(quotas))
    said("apply", str(quotas), "--overcommit")
    quotas.write_text(text.replace("COUNT", "7"))
    assert "harm no job or tenant" in said("apply", str(quotas))


def test_the_example_is_a_file(ledger: FakeLedger, tmp_path: Path):
    file = tmp_path / "example.toml"
    file.write_text(said("apply", "--example"))
    assert "SW-TENANT-UNKNOWN" in refused("apply", str(file))


def test_a_file_of_thousands_of_tenants_is_read_and_a_longer_one_refused(
    ledger: FakeLedger, quotas: Path
):
    quotas.write_text("".join(f"[tenants.team{n}]\nnominal = {n % 7}\n" for n in range(3000)))
    assert "Slurm has no account 'team2999'" in refused("apply", str(quotas))
    quotas.write_text("# " + "x" * MOST_BYTES)
    assert "it is too long: 512 KiB is the most." in refused("apply", str(quotas))


@pytest.mark.parametrize(
    "sent",
    [
        "no base64!",
        b64encode(b"no zlib").decode(),
        b64encode(zlib.compress(b"\xff")).decode(),
        b64encode(zlib.compress(b"# cut off")[:-6]).decode(),
        b64encode(zlib.compress(b"x" * 10 * MOST_BYTES)).decode(),
    ],
)
def test_what_can_not_be_unpacked_is_refused_before_it_takes_room(sent: str):
    with pytest.raises(InvalidInputError, match="SW-WIRE"):
        _ = QuotaFileRequest(packed=sent, file="quotas.toml").text


def test_a_plan_needs_a_file(ledger: FakeLedger):
    assert CliRunner().invoke(app, ("tenant-quota", "apply")).exit_code == 2


def loan(amount: int) -> Loan:
    return Loan("physics", "bio", Millislices(amount))


def test_loans_show_until_when_they_are_promised(ledger: FakeLedger):
    now_s = int(time.time())
    assert said("loans") == "Nothing is lent.\n"
    ledger.shown = dict.fromkeys(("physics", "bio"))  # type: ignore[arg-type]
    ledger.lent_since = (LoanTerm(loan(2000), now_s - 900, now_s - 10),)
    ledger.recalled = (Recall("physics", "bio", Millislices(500), now_s - 20),)
    lent, recalled = said("loans").splitlines()[1:]
    assert "promised until" in lent
    assert "recalled, back by" in recalled
    found = json.loads(said("loans", "bio", "--json"))
    assert [one["until_s"] for one in found] == [now_s + 590, now_s + 40]
    assert [one["is_recalled"] for one in found] == [False, True]
    ledger.shown = {**ledger.shown, "optics": None}  # type: ignore[dict-item]
    assert json.loads(said("loans", "optics", "--json")) == []
    assert "SW-TENANT-UNKNOWN" in refused("loans", "nobody")


def test_the_history_of_loans_is_one_tenants(ledger: FakeLedger):
    assert CliRunner().invoke(app, ("tenant-quota", "loans", "--all")).exit_code == 2
    assert "bio has never lent" in said("loans", "bio", "--all")
    ledger.lent_before = (
        LoanChange(8, loan(0), "change 7: physics", NOON),
        LoanChange(5, loan(2000), "idle", NOON - 60),
    )
    ended, given = said("loans", "bio", "--all").splitlines()[1:]
    assert ended.split()[2:5] == ["physics", "bio", "ended"]
    assert given.split()[2:5] == ["physics", "bio", "2"]
    assert json.loads(said("loans", "bio", "--all", "--json"))[1]["reason"] == "idle"


def test_a_long_history_of_loans_comes_in_pages(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    """Two tenants may lend to each other at every round for years."""
    sizes, call = list[int](), DaemonClient.call

    def counted(self: DaemonClient, request: LoansRequest) -> LoansAnswer:
        answer = call(self, request)
        sizes.append(len(answer.changes))
        return answer

    monkeypatch.setattr(tenant_desk, "_PAGE_CHANGES", 2)
    monkeypatch.setattr(DaemonClient, "call", counted)
    ledger.lent_before = tuple(LoanChange(2 * n, loan(n), "idle", NOON) for n in range(5, 0, -1))
    found = json.loads(said("loans", "bio", "--all", "--json"))
    assert [one["loan"]["amount_millislices"] for one in found] == [5, 4, 3, 2, 1]
    assert sizes == [2, 2, 1]
