"""Tests what operators' commands print and write, with a ledger and a Slurm of a few lines."""

import asyncio
import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from builders.ledger_parts import KeptTariffs
from builders.settings import site_settings
from builders.tariffs import record, tariff
from builders.tenants import tenant as tenant_of
from stand_ins.daemon_in_process import answer_from
from stand_ins.memory_ledger import MemoryStore
from stand_ins.scripted import ScriptedSlurm, job, sync_of
from typer.testing import CliRunner

from slicewise.cluster.language.errors import SlicewiseError, UnreachableError
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime import questions
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.main import app
from slicewise.slurm_plugin.api import budget_desk, record_desk, tenant_desk
from slicewise.slurm_plugin.api.budget_desk import BudgetDesk
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.record_desk import RecordDesk
from slicewise.slurm_plugin.api.tenant_desk import TenantDesk
from slicewise.slurm_plugin.cli.commands import (
    budget,
    costs,
    daemon,
    ledger_db,
    observe,
    tenant,
    why,
)
from slicewise.slurm_plugin.cli.commands import ledger as ledger_commands
from slicewise.slurm_plugin.cli.commands import tenant_quota as quota
from slicewise.slurm_plugin.cli.common import in_force, opened_ledger, options
from slicewise.slurm_plugin.cli.views.ledger import lines_csv
from slicewise.slurm_plugin.common.tenant_requests import InForceRequest
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.rules.accounting.budgets import Amend, unspent
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID
from slicewise.slurm_plugin.rules.accounting.types import (
    BalanceLine,
    BudgetEntry,
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
    Verification,
)
from slicewise.slurm_plugin.rules.common.observations import DAY_S, Observations, QuotaUse
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind
from slicewise.slurm_plugin.rules.quota.tenants import changed, check_words
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, QuotaChange, Recall, TenantUpdate
from slicewise.slurm_plugin.rules.quota.waiting_work import WaitingWork, waiting_work
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

SETTINGS = site_settings(types=["1g.10gb", "3g.40gb"])
ACCOUNTS = {"root": "", "physics": "root", "optics": "physics", "bio": "root"}
INSTANCES = {"1g.10gb": 7, "3g.40gb": 2}
MODULES = (
    tenant,
    quota,
    budget,
    ledger_commands,
    costs,
    observe,
    why,
)


class FakeLedger(MemoryStore):
    """What was written stays; every change is in force at once."""

    compiled_id = 10**9
    cluster_state: ClusterState
    tenant_desk: TenantDesk
    observed = Observations((), (), ())

    def __init__(self) -> None:
        super().__init__()
        self.transfers_of_export: list[dict[str, str | int | None]] = [
            {"tenant": name, "amount_millislice_s": 5} for name in ("bio", "physics", "bio")
        ]
        self.found: Policy = {}
        self.changes: list[QuotaChange] = []
        self.verification = Verification(5, 4, 0, 0, ())

    def policy(self) -> Policy:
        return self.found

    def recalls(self) -> tuple[Recall, ...]:
        return ()

    def change(self, update: TenantUpdate, author: str, reason: str) -> QuotaChange:
        check_words(author, reason)
        self.found = changed(self.found, update)
        if update.tenant in self.found:
            nominal = self.found[update.tenant].quota.nominal_millislices
            update = replace(update, nominal_millislices=nominal)
        self.changes.insert(0, QuotaChange(len(self.changes), update, author, reason, 0))
        return self.changes[0]

    def change_by(
        self, decide: Callable[[Policy], TenantUpdate | None], author: str, reason: str
    ) -> tuple[Policy, QuotaChange | None]:
        before, update = self.found, decide(self.found)
        return before, None if update is None else self.change(update, author, reason)

    def change_together(
        self, updates: Sequence[TenantUpdate], author: str, reason: str, _amend: object
    ) -> tuple[QuotaChange, ...]:
        before, written = self.found, list(self.changes)
        try:
            return tuple(self.change(update, author, reason) for update in updates)
        except SlicewiseError:
            self.found, self.changes = before, written
            raise

    def set_budget(
        self, update: TenantUpdate, author: str, reason: str, amend: Amend, meter: str
    ) -> int:
        before = self.found[update.tenant].budget_on(meter)
        self.change(update, author, reason)
        balance = self.balances(meter).get(update.tenant)
        entry = amend(before, self.rollovers(meter).get(update.tenant), unspent(balance))
        if entry is None:
            return 0
        assert self.enter(entry, unspent(balance))
        return entry.amount

    def history(self, tenant: str) -> tuple[QuotaChange, ...]:
        return tuple(one for one in self.changes if one.update.tenant == tenant)

    def compiled(self, _change_id: int) -> bool:
        return not self.is_uninstalled()

    def is_uninstalled(self) -> bool:
        return self.compiled_id == UNINSTALLED_ID

    def outstanding(self) -> tuple[Loan, ...]:
        return ()

    def entries(self, tenant: str | None, _since_s: int, meter: str) -> tuple[BudgetEntry, ...]:
        return tuple(one for one in self.entered if (one.tenant, one.meter) == (tenant, meter))

    def used_since(self, _payer: str, _since_s: int, _meter: str) -> int:
        return 0

    def charged_tenants(self) -> frozenset[str]:
        return frozenset()

    def verify(self) -> Verification:
        return self.verification

    def has_seal(self, seal: str) -> bool:
        return seal == "5f3a" * 16

    def since(self, since_s: int) -> Observations:
        return replace(
            self.observed, quota=tuple(use for use in self.observed.quota if use.day_s >= since_s)
        )

    def newest_sealed_id(self) -> int:
        return len(self.transfers_of_export)

    def export(
        self, _since_s: int, after_id: int, until_id: int, rows: int
    ) -> tuple[Mapping[str, str | int | None], ...]:
        if after_id and self.verification.faults:
            raise UnreachableError("SW-DATABASE-DOWN", "gone")
        page = self.transfers_of_export[after_id:until_id][:rows]
        return tuple({"id": number, **row} for number, row in enumerate(page, after_id + 1))


def in_mode(mode: str) -> Settings:
    daemon = SETTINGS.daemon.model_copy(update={"mode": mode})
    return SETTINGS.model_copy(update={"daemon": daemon})


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> FakeLedger:
    fake = FakeLedger()

    @contextmanager
    def opened(_settings: object) -> Iterator[FakeLedger]:
        yield fake

    monkeypatch.setattr(in_force, "_PATIENCE_S", 0.0)
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql:///ledger")
    for module in MODULES:
        monkeypatch.setattr(module, "load_settings", lambda: SETTINGS, raising=False)
    monkeypatch.setattr(opened_ledger, "opened_ledger", opened)
    slurm_has(monkeypatch, ACCOUNTS)
    slurm = ScriptedSlurm()
    cluster_state = sync_of(slurm)
    asyncio.run(cluster_state.turn())
    reads = Reads(SETTINGS, slurm, fake, cluster_state)  # type: ignore[arg-type]
    tenants = TenantDesk(in_mode("enforce"), fake, cluster_state, reads)  # type: ignore[arg-type]
    budgets = BudgetDesk(SETTINGS, fake, cluster_state, reads)  # type: ignore[arg-type]
    monkeypatch.setattr(budget_desk, "_PATIENCE_S", 0.0)
    records = RecordDesk(SETTINGS, fake, cluster_state, reads)  # type: ignore[arg-type]
    desks = (reads, tenants, budgets, records)
    answer_from(monkeypatch, {k: h for desk in desks for k, h in desk.handlers().items()})
    monkeypatch.setattr(record_desk, "_PAGE_ROWS", 2)
    fake.cluster_state, fake.tenant_desk = cluster_state, tenants
    return fake


def slurm_has(
    monkeypatch: pytest.MonkeyPatch,
    accounts: Mapping[str, str] | SlicewiseError,
    *,
    capacity_millislices: int = 14_000,
    instances: Mapping[str, int] = INSTANCES,
) -> None:
    """What the daemon sees of Slurm's accounts and GPUs; an error in their place is raised."""

    async def found(_: Reads, __: int) -> Mapping[str, str]:
        if isinstance(accounts, SlicewiseError):
            raise accounts
        return accounts

    monkeypatch.setattr(Reads, "accounts", found)
    monkeypatch.setattr(Reads, "capacity_millislices", lambda _: capacity_millislices)
    monkeypatch.setattr(tenant_desk, "instances_of", lambda *_: instances)


def said(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def read(*words: str) -> object:
    return json.loads(said(*words, "--json"))


def refused(ledger: FakeLedger, *words: str) -> SlicewiseError:
    """Refused with a hint, and nothing written."""
    before = (list(ledger.changes), list(ledger.entered), ledger.tenants.policy())
    with pytest.raises(SlicewiseError) as error:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert before == (ledger.changes, ledger.entered, ledger.tenants.policy())
    assert error.value.refusal.hint
    return error.value


# Tenants


def test_a_tenant_is_added_below_the_nearest_one_above_its_account(ledger: FakeLedger):
    assert "physics is now a tenant at the top." in said("tenant", "create", "physics")
    assert "optics is now a tenant below physics." in said("tenant", "create", "optics")
    assert "slicewise tenant-quota set bio" in said("tenant", "create", "bio")


def test_adding_what_is_there_writes_nothing(ledger: FakeLedger):
    said("tenant", "create", "bio")
    assert said("tenant", "create", "bio") == "bio is already a tenant at the top.\n"
    assert len(ledger.changes) == 1


def test_a_tenant_can_be_placed_by_hand(ledger: FakeLedger):
    said("tenant", "import")
    said("tenant", "move", "bio", "--parent", "physics", "--reason", "one budget")
    assert ledger.tenants.policy()["bio"].parent == "physics"
    assert ledger.changes[0].reason == "one budget"
    there = said("tenant", "move", "bio", "--parent", "physics")
    assert there == "bio is already a tenant below physics.\n"
    said("tenant", "move", "bio", "--parent", "")
    assert ledger.tenants.policy()["bio"].parent == ""


def test_a_tenant_is_not_moved_by_creating_it_again(ledger: FakeLedger):
    said("tenant", "import")
    before = len(ledger.changes)
    told = refused(ledger, "tenant", "create", "optics", "--parent", "bio").refusal
    assert (told.code, told.hint) == (
        "SW-VALUE",
        "Move it: slicewise tenant move optics --parent bio",
    )
    assert len(ledger.changes) == before


def test_import_shows_first_and_then_does_it_once(ledger: FakeLedger):
    assert "would be taken over" in said("tenant", "import", "--dry-run")
    assert ledger.changes == []
    assert "is taken over" in said("tenant", "import")
    assert {name: one.parent for name, one in ledger.tenants.policy().items()} == {
        "physics": "",
        "optics": "physics",
        "bio": "",
    }
    assert said("tenant", "import") == "Every account is a tenant, each below its parent.\n"


def test_an_import_is_one_change_however_many_accounts_there_are(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    """Each account was a transaction of its own: thousands took longer than a command waits."""
    with monkeypatch.context() as patched:
        asked = list[object]()
        read = Reads.from_ledger

        async def counted(reads: Reads, uid: int, ask: Callable[[], Any]) -> Any:
            asked.append(ask)
            return await read(reads, uid, ask)

        patched.setattr(Reads, "from_ledger", counted)
        said("tenant", "import", "--reason", "start")
    assert len(ledger.changes) == 3
    assert len(asked) == 3  # Which tenants there are, for the check and the import; the change.


def test_an_import_after_which_slurm_is_away_says_what_it_did(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    """It was said to have failed, since accounts were compared once more."""
    change = FakeLedger.change

    def goes(*words: Any) -> Any:
        slurm_has(monkeypatch, UnreachableError("SW-SLURM-DOWN", "gone"))
        return change(*words)

    monkeypatch.setattr(FakeLedger, "change", goes)
    assert "is taken over" in said("tenant", "import")


def test_a_ledger_that_is_away_after_a_change_does_not_undo_its_answer(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    """The commands failed, as if nothing had been changed."""
    said("tenant", "import")
    gone = False

    def away(*_: object) -> Any:
        if gone:
            raise UnreachableError("SW-DATABASE-DOWN", "gone")
        return {}

    def then_gone(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed_then_gone(*words: Any) -> Any:
            nonlocal gone
            answer = change(*words)
            gone = True
            return answer

        return changed_then_gone

    monkeypatch.setattr(FakeLedger, "rollovers", away)
    monkeypatch.setattr(FakeLedger, "open_reservations", lambda *_: tuple(away()))
    monkeypatch.setattr(FakeLedger, "set_budget", then_gone(FakeLedger.set_budget))
    told = said("budget", "set", "bio", "--period", "month", "--amount", "10")
    assert "it begins the period later" in told
    gone = False
    monkeypatch.setattr(FakeLedger, "change", then_gone(FakeLedger.change))
    assert "bio is no longer a tenant" in said("tenant", "delete", "bio", "--yes")


def test_check_fails_where_a_tenant_is_not_where_its_account_is(ledger: FakeLedger):
    said("tenant", "import")
    assert "Every tenant has its account" in said("tenant", "check")
    said("tenant", "move", "optics", "--parent", "bio")
    ledger.tenants.change(TenantUpdate("gone"), "root", "")
    assert refused(ledger, "tenant", "check").refusal.message.endswith("accounts: 2.")


def test_check_names_the_accounts_that_are_no_tenants(ledger: FakeLedger):
    said("tenant", "create", "physics")
    assert "Accounts that are no tenants: bio, optics." in said("tenant", "check")
    assert read("tenant", "check") == []
    said("tenant", "import")
    assert "no tenants" not in said("tenant", "check")


def test_check_says_why_an_account_can_not_be_a_tenant(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    """It sent such an account to tenant import, which refuses it."""
    said("tenant", "import")
    accounts = {**ACCOUNTS, "b io": "root"}
    slurm_has(monkeypatch, accounts)
    text = said("tenant", "check")
    assert "Accounts that are no tenants: b io." in text
    assert "'b io' can't be a tenant. A tenant is a Slurm account other than root" in text
    assert "tenant import" not in text
    accounts["new"] = "root"
    assert "Take them over, the others: slicewise tenant import" in said("tenant", "check")


def test_the_question_says_what_becomes_of_a_tenants_jobs(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant", "create", "bio")
    waiting = WaitingWork(26, ("bert", "ocr"))
    monkeypatch.setattr(tenant_desk, "waiting_work", lambda *_: waiting)
    words = (
        "26 of its jobs and array tasks wait, and never start. "
        "Its services start no more replicas: bert, ocr."
    )
    assert words in refused(ledger, "tenant", "delete", "bio").refusal.message
    assert said("tenant", "delete", "bio", "--yes").endswith(f"{words}\n")


PARTITIONS = frozenset({"gpu"})


def test_what_waits_in_an_account_is_counted_by_tasks():
    batch = partial(job, account="bio", qos="slicewise_bio", held=False, admin_comment="")
    jobs = (
        batch(1),
        batch(1, untouched=frozenset({1, 2, 3})),
        batch(1, JobState.RUNNING),
        batch(1, account="optics"),
        batch(1, partition="cpu", qos="normal"),
        batch(1, partition="cpu"),
        batch(1, qos="normal"),
    )
    assert waiting_work(jobs, "bio", PARTITIONS) == WaitingWork(4)


def test_without_a_look_at_slurm_nothing_is_said_of_what_waits(ledger: FakeLedger):
    said("tenant", "create", "bio")
    slurm_is_unseen(ledger)
    message = refused(ledger, "tenant", "delete", "bio").refusal.message
    assert "wait" not in message


def test_slots_of_services_that_rest_do_not_wait():
    slot = partial(job, account="bio", qos="slicewise_bio")
    ocr = "slicewise:1 token=cd34 tenant=bio service=ocr"
    jobs = (
        slot(1, untouched=frozenset(range(1, 8))),
        slot(8, JobState.RUNNING),
        slot(9, held=False, reason="QOSGrpBilling", admin_comment=ocr),
    )
    assert waiting_work(jobs, "bio", PARTITIONS) == WaitingWork(1, ("bert", "ocr"))


def slurm_is_unseen(ledger: FakeLedger) -> None:
    """The daemon has no complete look at Slurm any more."""
    state = ledger.cluster_state
    state.view = state.view.model_copy(update={"complete": False})


def only_observe(ledger: FakeLedger) -> None:
    ledger.tenant_desk._settings = in_mode("observe")


def take_out(ledger: FakeLedger) -> None:
    ledger.cluster_state.is_uninstalled = True


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (only_observe, "the daemon is in mode observe, in which Slurm's limits stay"),
        (take_out, "slicewise compile --again"),
        (slurm_is_unseen, "no complete look"),
        (lambda _: None, "the daemon is busy"),
    ],
)
def test_one_reason_says_why_a_change_is_not_in_force(
    ledger: FakeLedger,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[FakeLedger], None],
    words: str,
):
    said("tenant", "create", "bio")
    monkeypatch.setattr(FakeLedger, "compiled", lambda *_: False)
    happens(ledger)
    assert words in said("tenant", "delete", "bio", "--yes")


def test_a_daemon_that_dies_after_a_change_leaves_it_recorded(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    call = DaemonClient.call

    def dies(client: DaemonClient, request: Any) -> Any:
        if isinstance(request, InForceRequest):
            raise UnreachableError("SW-DAEMON-DOWN", "gone")
        return call(client, request)

    monkeypatch.setattr(DaemonClient, "call", dies)
    text = said("tenant-quota", "set", "bio", "--nominal", "6")
    assert "recorded, and not in force yet: the daemon gives no answer (SW-DAEMON-DOWN)" in text
    assert ledger.tenants.policy()["bio"].quota.nominal_millislices == 6000


def test_a_change_without_an_answer_is_not_known_and_may_be_repeated(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    send = DaemonClient._send

    def hangs_up(client: DaemonClient, place: str, request: Any) -> bytes:
        send(client, place, request)
        return b""

    with monkeypatch.context() as patched:
        patched.setattr(DaemonClient, "_send", hangs_up)
        with pytest.raises(UnreachableError, match="look before you repeat it") as error:
            CliRunner().invoke(
                app, ("tenant-quota", "set", "bio", "--nominal", "6"), catch_exceptions=False
            )
    assert error.value.refusal.code == "SW-DAEMON-UNSURE"
    assert "has this already" in said("tenant-quota", "set", "bio", "--nominal", "6")
    assert len(ledger.changes) == 1


def test_quotas_say_where_the_calendar_has_another_now(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant-quota", "set", "bio", "--nominal", "6")
    said("tenant-quota", "set", "optics", "--nominal", "3")
    assert "calendar" not in said("tenant", "list")
    view = ledger_view_now(ledger, SETTINGS)  # type: ignore[arg-type]
    at_night = Window(1, "bio", WindowKind.NOMINAL, Millislices(2000))
    seen = replace(view, windows=(at_night,))
    monkeypatch.setattr(Reads, "ledger_view", lambda _: seen)
    words = "By the calendar bio has now: nominal 2 slices (otherwise 6 slices).\n"
    assert said("tenant", "list").endswith(words)
    assert words in said("tenant", "show", "bio")
    assert "calendar" not in said("tenant", "show", "optics")


def test_without_a_name_show_shows_every_tenant(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6")
    assert said("tenant", "show") == said("tenant", "list")
    assert read("tenant", "show") == read("tenant", "list")


def test_a_quota_shows_what_is_used_of_its_limits_and_guarantees_by_type(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    run = job(0, JobState.RUNNING, account="bio", qos="slicewise_bio")
    jobs = (run, replace(run, job_id=7, qos="slicewise_bio_borrowed"))
    monkeypatch.setattr(ClusterState, "jobs", jobs)
    said("tenant-quota", "set", "bio", "--nominal", "6")
    assert "of 2 guaranteed" not in said("tenant", "show", "bio")
    said("tenant-quota", "set", "bio", "--type-nominal", "1g.10gb=2", "--limit", "3g.40gb=1")
    of_bio = "2 × 1g.10gb, 1 of 2 guaranteed; 0 × 3g.40gb (at most 1)"
    assert of_bio in " ".join(said("tenant", "show", "bio").split())
    shown = read("tenant", "show", "bio")
    assert isinstance(shown, dict)
    assert shown["types"][0] == {
        "gres_type": "1g.10gb",
        "limit": None,
        "guaranteed": 2,
        "in_use": 2,
        "guaranteed_in_use": 1,
    }


def test_without_slurm_a_quota_says_nothing_of_what_is_used_by_type(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6", "--type-nominal", "1g.10gb=2")
    assert "of 2 guaranteed" in said("tenant", "show", "bio")
    slurm_is_unseen(ledger)
    assert "of 2 guaranteed" not in said("tenant", "show", "bio")
    shown = read("tenant", "show", "bio")
    assert isinstance(shown, dict)
    assert (shown["types"], shown["in_slurm"]) == (None, None)


def test_a_deleted_tenant_keeps_its_history(ledger: FakeLedger):
    said("tenant", "import")
    assert "optics is no longer a tenant" in said("tenant", "delete", "optics", "--yes")
    assert "deleted" in said("tenant-quota", "history", "optics")
    assert read("tenant", "delete", "bio", "--yes") == {
        "tenant": "bio",
        "running": 0,
        "in_force": True,
    }


def test_a_tenant_that_is_deleted_again_is_told_of_as_the_first_time(ledger: FakeLedger):
    """The first answer may have been lost."""
    said("tenant", "create", "bio")
    first, changes = read("tenant", "delete", "bio", "--yes"), list(ledger.changes)
    assert read("tenant", "delete", "bio", "--yes") == first
    assert "bio is no longer a tenant" in said("tenant", "delete", "bio", "--yes")
    assert ledger.changes == changes


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--limit", "3g.40gb"), "it has no =COUNT"),
        (("--limit", "1g.10gb=two"), "'two' is not a count"),
        (("--limit", "A100-80GB=many"), "not a number of slices"),
        (("--limit", "1g.10gb=1", "--limit", "1g.10gb=2"), "twice"),
        (("--type-nominal", "3g.40gb=-1"), "'-1' is not a count"),
    ],
)
def test_an_amount_that_can_not_be_read_is_told_without_a_daemon(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], why: str
):
    monkeypatch.setattr(DaemonClient, "_send", None)
    assert why in str(refused(ledger, "tenant-quota", "set", "bio", *words))


def test_a_limit_of_a_type_that_is_gone_is_lifted_by_the_daemon(ledger: FakeLedger):
    said("tenant", "create", "bio")
    ledger.change(TenantUpdate("bio", type_limits={"gone": 1}), "op", "")
    said("tenant-quota", "set", "bio", "--limit", "gone=none")
    assert ledger.policy()["bio"].quota.type_limits == {}


def test_a_tenant_is_deleted_on_confirmation_only(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant", "create", "bio")
    for words in (("delete", "bio"), ("delete", "bio", "--json")):
        asked = CliRunner().invoke(app, ["tenant", *words], input="y\n")
        assert "SW-ABORTED" in str(asked.exception)
    monkeypatch.setattr(questions, "is_at_a_terminal", lambda: True)
    asked = CliRunner().invoke(app, ["tenant", "delete", "bio"], input="n\n")
    assert (asked.exit_code, "bio" in ledger.tenants.policy()) == (1, True)
    asked = CliRunner().invoke(app, ["tenant", "delete", "bio", "--json"], input="y\n")
    assert ("SW-ABORTED" in str(asked.exception), "bio" in ledger.tenants.policy()) == (True, True)
    asked = CliRunner().invoke(app, ["tenant", "delete", "bio"], input="y\n")
    assert (asked.exit_code, "bio" in ledger.tenants.policy()) == (0, False)


@pytest.mark.parametrize(
    "words",
    [("tenant-quota", "set", "bio", "--nominal", "6"), ("tenant", "delete", "bio", "--yes")],
)
def test_a_script_learns_that_a_change_is_not_in_force_in_time(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
):
    said("tenant", "create", "bio")
    said(*words, "--timeout", "0")
    monkeypatch.setattr(FakeLedger, "compiled", lambda *_: False)
    if "delete" in words:
        said("tenant", "create", "bio")
    assert "recorded" in said("tenant-quota", "set", "bio", "--nominal", "5")
    before = len(ledger.changes)
    with pytest.raises(UnreachableError, match="SW-TIMEOUT"):
        CliRunner().invoke(app, [*words, "--timeout", "0"], catch_exceptions=False)
    assert len(ledger.changes) == before + 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tenant list", "No tenants. Take Slurm's accounts over: slicewise tenant import"),
        ("budget show", "No budgets. Operators set them: slicewise budget set NAME --period month"),
        ("ledger balance", "Nothing was booked yet."),
        ("ledger statement", "Use until now.\nNo runs."),
        ("ledger statement --journal", "Use until now.\nNo runs."),
    ],
)
def test_an_empty_list_says_that_it_is_empty(ledger: FakeLedger, words: str, expected: str):
    """And what to do about it; JSON has the empty list. Both end as a list with rows does."""
    shown = said(*words.split())
    assert shown.startswith(expected)
    assert len(shown.splitlines()) == len(expected.splitlines())
    found = read(*words.split())
    assert (found if isinstance(found, list) else found["lines"]) == []


def test_without_slurm_the_tree_is_shown_as_the_ledger_has_it(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant", "import")

    slurm_has(monkeypatch, UnreachableError("SW-SLURM-DOWN", "slurmctld does not answer."))
    result = CliRunner().invoke(app, ("tenant", "list"))
    assert "Without Slurm: slurmctld does not answer." in result.stderr
    assert "?" in result.stdout


def test_while_slurm_shows_no_gpu_limits_are_what_is_compiled(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant", "import")
    said("tenant-quota", "set", "bio", "--nominal", "7")
    slurm_has(monkeypatch, ACCOUNTS, capacity_millislices=0, instances={})
    (bio,) = (one for one in read("tenant", "list") if one["tenant"] == "bio")  # type: ignore[attr-defined]
    assert bio["limit_millislices"] == 7000


# Quotas


def test_one_command_makes_a_tenant_of_an_account_and_sets_its_quota(ledger: FakeLedger):
    assert "optics: nominal 3.5 slices, in force" in said(
        "tenant-quota", "set", "optics", "--nominal", "3.5"
    )
    assert ledger.tenants.policy()["optics"].parent == ""


def test_values_that_hold_are_not_recorded_again(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6", "--limit", "3g.40gb=2")
    text = said("tenant-quota", "set", "bio", "--nominal", "6", "--weight", "1")
    assert text == (
        "bio has this already, nothing was recorded: nominal 6 slices, borrowing limit 0,"
        " lending limit 0, weight 1, types 2 × 3g.40gb, models unlimited, guaranteed by type any\n"
    )
    outcome = read("tenant-quota", "set", "bio", "--limit", "3g.40gb=2")
    assert outcome["before"] == outcome["after"]  # type: ignore[index]
    assert len(ledger.changes) == 1


@pytest.mark.parametrize(("typo", "near"), [("tean7", "team7, team"), ("zzz", "none like it")])
def test_of_hundreds_of_accounts_the_nearest_are_named(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, typo: str, near: str
):
    accounts = {"root": "", **{f"team{number}": "root" for number in range(402)}}
    slurm_has(monkeypatch, accounts)
    hint = refused(ledger, "tenant-quota", "set", typo, "--nominal", "1").refusal.hint
    assert f"Accounts: 402, {'the nearest ' if '7' in near else ''}{near}" in hint
    assert hint.count("team") <= 5


def test_only_what_is_given_is_set(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6", "--limit", "3g.40gb=2")
    text = said("tenant-quota", "set", "bio", "--weight", "2", "--limit", "1g.10gb=7")
    assert "weight 2 (was 1)" in text
    quota = ledger.tenants.policy()["bio"].quota
    assert (quota.nominal_millislices, quota.weight) == (6000, 2)
    assert quota.type_limits == {"1g.10gb": 7, "3g.40gb": 2}
    said("tenant-quota", "set", "bio", "--limit", "3g.40gb=none", "--limit", "A100-80GB=7")
    assert ledger.tenants.policy()["bio"].quota.model_limits == {"A100-80GB": 7000}
    assert ledger.tenants.policy()["bio"].quota.type_limits == {"1g.10gb": 7}


def test_guarantees_by_type_stay_beside_limits(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6", "--limit", "3g.40gb=2")
    text = said("tenant-quota", "set", "bio", "--type-nominal", "1g.10gb=3")
    assert "guaranteed by type 3 × 1g.10gb (was any)" in text
    said("tenant-quota", "set", "bio", "--type-nominal", "3g.40gb=0")
    quota = ledger.tenants.policy()["bio"].quota
    assert (quota.type_nominals, quota.type_limits) == (
        {"1g.10gb": 3, "3g.40gb": 0},
        {"3g.40gb": 2},
    )
    said("tenant-quota", "set", "bio", "--type-nominal", "1g.10gb=none")
    assert ledger.tenants.policy()["bio"].quota.type_nominals == {"3g.40gb": 0}


def test_set_without_anything_to_set_is_a_wrong_use(ledger: FakeLedger):
    result = CliRunner().invoke(app, ("tenant-quota", "set", "bio"))
    assert result.exit_code == 2
    assert ledger.changes == []


def test_quotas_beyond_the_cluster_are_taken_only_if_that_is_meant(ledger: FakeLedger):
    beyond = ("tenant-quota", "set", "bio", "--nominal", "15")
    assert refused(ledger, *beyond).refusal.code == "SW-QUOTA-CAPACITY"
    result = CliRunner().invoke(app, (*beyond, "--overcommit"))
    assert "1 slice above the cluster's 14" in result.stderr
    assert "Overcommitted" not in result.stdout
    within = CliRunner().invoke(app, ("tenant-quota", "set", "bio", "--nominal", "14"))
    assert within.stderr == ""


def test_more_instances_than_there_are_are_guaranteed_only_if_that_is_meant(ledger: FakeLedger):
    said("tenant-quota", "set", "optics", "--type-nominal", "1g.10gb=4")
    beyond = ("tenant-quota", "set", "bio", "--type-nominal", "1g.10gb=4")
    refusal = refused(ledger, *beyond).refusal
    assert refusal.code == "SW-QUOTA-CAPACITY"
    assert "8 instances of 1g.10gb (the cluster has 7)" in refusal.message
    result = CliRunner().invoke(app, (*beyond, "--overcommit"))
    assert "Overcommitted: quotas guarantee 8 instances of 1g.10gb" in result.stderr
    other = CliRunner().invoke(app, ("tenant-quota", "set", "bio", "--type-nominal", "3g.40gb=2"))
    assert (other.exit_code, "Overcommitted" in other.stderr) == (0, True)
    fewer = ("tenant-quota", "set", "bio", "--type-nominal", "1g.10gb=3")
    assert CliRunner().invoke(app, fewer).stderr == ""


def test_after_an_uninstall_no_quota_is_set(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6")
    more = ("tenant-quota", "set", "bio", "--nominal", "7")
    take_out(ledger)
    assert refused(ledger, *more).refusal.code == "SW-UNINSTALLED"
    ledger.cluster_state.is_uninstalled = False
    ledger.compiled_id = UNINSTALLED_ID
    assert refused(ledger, *more).refusal.code == "SW-UNINSTALLED"


@pytest.mark.parametrize(
    ("happens", "waits"), [(only_observe, False), (take_out, False), (lambda _: None, True)]
)
def test_limits_that_the_daemon_never_sets_are_not_waited_for(
    ledger: FakeLedger,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[FakeLedger], None],
    waits: bool,
):
    said("tenant", "create", "bio")
    looked = list[int]()
    monkeypatch.setattr(in_force, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(FakeLedger, "compiled", lambda _, change_id: bool(looked.append(change_id)))
    happens(ledger)
    said("tenant", "delete", "bio", "--yes")
    assert (len(looked) > 1) is waits


def test_a_quotas_outcome_as_values(ledger: FakeLedger):
    said("tenant-quota", "set", "bio", "--nominal", "6")
    found = read("tenant-quota", "set", "bio", "--nominal", "7", "--reason", "more")
    assert isinstance(found, dict)
    assert (found["after"]["name"], found["change"]["reason"]) == ("bio", "more")
    quotas = [found[side]["quota"]["nominal_millislices"] for side in ("before", "after")]
    assert quotas == [6000, 7000]
    assert found["in_force_after_s"] is not None
    (row, _) = read("tenant-quota", "history", "bio")  # type: ignore[misc]
    assert row == found["change"]
    assert row["update"]["nominal_millislices"] == 7000
    assert row["author"] == options.author_name()


# Budgets


@pytest.fixture
def budgeted(ledger: FakeLedger) -> FakeLedger:
    said("tenant", "import")
    said("budget", "set", "bio", "--period", "month", "--amount", "10")
    start_s = period_start_s(Period.MONTH, int(time.time()), "UTC")
    ledger.budgets.enter(BudgetEntry("bio", "roll", 36_000_000, start_s, "slicewise", ""), None)
    return ledger


@pytest.mark.parametrize("lost", ["the question", "the answer"])
def test_a_grant_that_got_no_answer_is_asked_for_again_and_booked_once(
    budgeted: FakeLedger, monkeypatch: pytest.MonkeyPatch, lost: str
):
    enter, failures = budgeted.enter, [UnreachableError("SW-DATABASE-DOWN", "gone")]

    def lossy(entry: BudgetEntry, unspent_amount: int | None) -> bool:
        if failures and lost == "the question":
            raise failures.pop()
        booked = enter(entry, unspent_amount)
        if failures:
            raise failures.pop()
        return booked

    monkeypatch.setattr(budgeted, "enter", lossy)
    said("budget", "grant", "bio", "--amount", "2", "--reason", "more")
    said("budget", "grant", "bio", "--amount", "2", "--reason", "and more")
    assert [one.reason for one in budgeted.entered[1:]] == ["more", "and more"]


def test_a_grant_that_gets_no_answer_at_all_says_how_to_ask_again(
    budgeted: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: object) -> bool:
        raise UnreachableError("SW-DATABASE-DOWN", "gone")

    monkeypatch.setattr(budgeted, "enter", never)
    error = refused(budgeted, "budget", "grant", "bio", "--amount", "2", "--reason", "more")
    assert error.refusal.code == "SW-DATABASE-DOWN"
    assert "--key command-" in error.refusal.hint


def test_what_is_granted_by_the_same_key_is_granted_once(budgeted: FakeLedger):
    for _ in range(2):
        words = ("--amount=-2", "--reason", "more", "--key", "ticket-814")
        said("budget", "adjust", "bio", *words)
    assert [one.key for one in budgeted.entered] == [None, "ticket-814"]
    refused(budgeted, "budget", "grant", "bio", "--amount", "2", "--reason", "x", "--key", " ")


def test_a_statement_of_a_part_of_time_cuts_runs_there(ledger: FakeLedger):
    run = Run(RunKey("c", 1, 1000), "bio", "alice", "1", {}, Millislices(1000), "bio")
    kinds = (TransferKind.RESERVE, TransferKind.POST)
    steps = tuple(Transfer(kind, MillisliceSeconds(60_000), 1060) for kind in kinds)
    ledger.charges.post([Charge(run, 0, steps)])
    times = [
        datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at_s in (0, 1040, 2000)
    ]
    found = [
        read("ledger", "statement", "--journal", "--from", begin, "--until", end)
        for begin, end in pairwise(times)
    ]
    assert [one["runs"][0]["used_millislice_s"] for one in found] == [40_000, 20_000]
    assert [one["lines"][0]["used_millislice_s"] for one in found] == [40_000, 20_000]
    assert "runs" not in read("ledger", "statement")
    (day,) = read("ledger", "statement", "--by", "day")["lines"]
    assert day["key"] == times[1].partition("T")[0]
    assert day["used_millislice_s"] == 60_000
    assert "other jobs" in said("ledger", "statement")
    assert "alice" in said("ledger", "statement", "--by", "user")
    assert said("ledger", "statement", "--from", "1h").endswith("now.\nNo runs.\n")
    month = said("ledger", "statement", "--from", "1970-01", "--until", "1970-02").splitlines()[0]
    assert re.fullmatch(r"Use from 1970-01-01 00:00 \S+ until 1970-02-01 00:00 \S+\.", month)
    assert said("ledger", "statement").startswith("Use until now.\n")
    assert said("ledger", "statement", "--since", "1970-01").startswith("Runs that ended since")
    for wrong in (("--since", times[0]), ("--until", times[0])):
        words = ("ledger", "statement", "--from", times[1], *wrong)
        assert CliRunner().invoke(app, words).exit_code == 2


@pytest.fixture
def two_payers(ledger: FakeLedger) -> FakeLedger:
    """A run over two days that another tenant pays for, and one whose user is a formula."""
    for job_id, name, payer, user, lasting_s in (
        (1, "optics", "physics", "alice", 100),
        (2, "bio", "bio", "=cmd()", 7),
    ):
        start_s = 86_400 - 60
        gres = {"3g.40gb": 2}
        run = Run(RunKey("c", job_id, start_s), name, user, "1", gres, Millislices(7000), payer)
        amount = MillisliceSeconds(7000 * lasting_s)
        kinds = (TransferKind.RESERVE, TransferKind.POST)
        steps = tuple(Transfer(kind, amount, start_s + lasting_s) for kind in kinds)
        ledger.charges.post([Charge(run, 0, steps)])
    return ledger


def test_what_was_observed_is_told_beside_what_was_used(two_payers: FakeLedger):
    days = [QuotaUse(DAY_S * day, "bio", 3600, 4000, 0, 0, 0) for day in (0, 1)]
    two_payers.observed = Observations((), (), tuple(days))
    two_payers.found = {"bio": tenant_of("bio", 4000)}
    all_days = read("observe")
    assert (all_days["since_s"], all_days["days"]) == (0, 2)  # type: ignore[index]
    used = {one["tenant"]: one["used_millislice_s"] for one in all_days["tenants"]}  # type: ignore[index]
    assert used["bio"] == 7000 * 7
    assert used["optics"] == 7000 * 100
    second = read("observe", "--since", "1970-01-02")
    assert (second["since_s"], second["days"]) == (DAY_S, 1)  # type: ignore[index]
    # What a run used before is cut off.
    used = {one["tenant"]: one["used_millislice_s"] for one in second["tenants"]}  # type: ignore[index]
    assert used["optics"] == 7000 * 40


JANUARY = ("--from", "1970-01", "--until", "1970-02")


def test_what_is_billed_has_the_columns_of_focus_and_adds_up_to_the_statement(
    two_payers: FakeLedger,
):
    two_payers.tariffs = KeptTariffs(record(1, 0, tariff(slice_hour="0.35")))
    text = said("ledger", "statement", "--focus", *JANUARY)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == sorted(rows[0])
    assert [
        (row["ChargePeriodStart"], row["ChargePeriodEnd"], row["SubAccountId"]) for row in rows
    ] == [
        ("1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z", "bio"),
        ("1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z", "optics"),
        ("1970-01-02T00:00:00Z", "1970-01-03T00:00:00Z", "optics"),
    ]
    first = rows[1]
    assert first["BillingAccountId"] == "physics"
    assert first["BillingPeriodEnd"] == "1970-02-01T00:00:00Z"
    assert (first["ConsumedQuantity"], first["ConsumedUnit"]) == ("420.000", "Slice-Seconds")
    # 0.11666... slice-hours at 0.35, to the millionth.
    assert Decimal(first["BilledCost"]) == Decimal("0.040833")
    assert Decimal(first["ListUnitPrice"]) == Decimal("0.35")
    assert (first["BillingCurrency"], first["SkuId"]) == ("EUR", "3g.40gb")
    assert json.loads(first["Tags"]) == {"slicewise/user": "alice"}
    totals = read("ledger", "statement", *JANUARY)["tenants"]
    for total in totals:
        mine = [row for row in rows if row["SubAccountId"] == total["tenant"]]
        used = sum(Decimal(row["ConsumedQuantity"]) for row in mine)
        assert used * 1000 == total["used_millislice_s"]
    (shown, *_) = read("ledger", "statement", "--focus", *JANUARY)
    assert shown["ConsumedQuantity"] == 49
    assert shown["ChargeClass"] is None


def test_without_a_price_costs_are_empty(two_payers: FakeLedger):
    text = said("ledger", "statement", "--focus", *JANUARY)
    row = next(csv.DictReader(io.StringIO(text)))
    empty = {name for name, value in row.items() if not value}
    assert {"BilledCost", "EffectiveCost", "BillingCurrency", "ListUnitPrice"} <= empty
    assert (row["ResourceId"], row["ServiceCategory"]) == ("", "Compute")
    assert read("ledger", "statement", "--focus", *JANUARY)[0]["BilledCost"] is None
    for wrong in (("--from", "1970-01"), (*JANUARY, "--journal"), (*JANUARY, "--by", "user")):
        words = ("ledger", "statement", "--focus", *wrong)
        assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.usefixtures("two_payers")
def test_csv_without_rows_has_its_header():
    """A month without charges, or a ledger without entries."""
    march = ("--from", "1970-03", "--until", "1970-04")
    statement = ("ledger", "statement")
    for words in (
        (*statement, "--focus"),
        (*statement, "--csv"),
        (*statement, "--by", "day", "--csv"),
        (*statement, "--journal", "--csv"),
    ):
        header, *rows = said(*words, *JANUARY).splitlines()
        assert rows
        assert said(*words, *march) == f"{header}\n"
    header, *_ = said("ledger", "balance", "--csv").splitlines()
    assert lines_csv((), BalanceLine) == f"{header}\n"


def test_no_name_is_a_formula_in_csv(two_payers: FakeLedger, monkeypatch: pytest.MonkeyPatch):
    by_user = said("ledger", "statement", "--by", "user", "--csv")
    journal = said("ledger", "statement", "--journal", "--csv")
    texts = ("+1", "-1", "@a", "\tb", "c=1")
    two_payers.transfers_of_export = [{"until_s": -1, "reason": text} for text in texts]
    exported = list(csv.DictReader(io.StringIO(said("ledger", "export"))))
    assert [row["key"] for row in csv.DictReader(io.StringIO(by_user))] == ["'=cmd()", "alice"]
    assert "'=cmd()" in journal
    assert [row["reason"] for row in exported] == ["'+1", "'-1", "'@a", "'\tb", "c=1"]
    assert {row["until_s"] for row in exported} == {"-1"}
    # JSON has them as they are.
    (line, _) = read("ledger", "statement", "--by", "user")["lines"]
    assert line["key"] == "=cmd()"


def test_a_statement_is_cut_by_the_zone_in_which_budgets_begin(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    """It was the zone of the host, so that a month's statement was not what the budget had."""
    tokyo = SETTINGS.ledger.model_copy(update={"time_zone": "Asia/Tokyo"})
    settings = SETTINGS.model_copy(update={"ledger": tokyo})
    monkeypatch.setattr(ledger_commands, "load_settings", lambda: settings)
    midnight_s = 31 * 86_400 - 9 * 3600
    run = Run(RunKey("c", 1, midnight_s - 60), "bio", "alice", "1", {}, Millislices(1000), "bio")
    steps = tuple(
        Transfer(kind, MillisliceSeconds(100_000), midnight_s + 40)
        for kind in (TransferKind.RESERVE, TransferKind.POST)
    )
    ledger.charges.post([Charge(run, 0, steps)])
    by_day = read("ledger", "statement", "--by", "day", "--from", "1970-01")["lines"]
    assert [(one["key"], one["used_millislice_s"]) for one in by_day] == [
        ("1970-01-31", 60_000),
        ("1970-02-01", 40_000),
    ]
    (february,) = read("ledger", "statement", "--from", "1970-02")["lines"]
    assert february["used_millislice_s"] == 40_000
    words = "Use from 1970-02-01 00:00 JST until now."
    assert said("ledger", "statement", "--from", "1970-02").startswith(words)


def test_the_statement_of_a_parent_names_the_tenants_below_that_have_runs(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant", "import")
    assert said("ledger", "statement", "physics") == "Use until now.\nNo runs.\n"
    monkeypatch.setattr(FakeLedger, "charged_tenants", lambda _: frozenset({"bio", "optics"}))
    assert said("ledger", "statement", "physics") == (
        "Use until now.\nNo runs.\n"
        "Tenants below it have runs, all of which their own statements show: optics."
        " For example: slicewise ledger statement optics\n"
    )
    assert "below" not in said("ledger", "statement", "bio")


def test_a_statement_by_day_from_a_later_day_shows_the_days_of_the_use(ledger: FakeLedger):
    run = Run(RunKey("c", 1, 86_400), "bio", "alice", "1", {}, Millislices(1000), "bio")
    amount = MillisliceSeconds(10 * 86_400_000)
    kinds = (TransferKind.RESERVE, TransferKind.POST)
    ledger.charges.post([Charge(run, 0, tuple(Transfer(kind, amount, 950_400) for kind in kinds))])
    words = ("--by", "day", "--from", "1970-01-10T12:00:00", "--until", "1970-01-11T06:00:00")
    found = read("ledger", "statement", *words)
    assert [(line["key"], line["used_millislice_s"]) for line in found["lines"]] == [
        ("1970-01-10", 43_200_000),
        ("1970-01-11", 21_600_000),
    ]
    assert found["tenants"][0]["used_millislice_s"] == 64_800_000


def test_a_budget_that_is_there_is_changed_in_parts(budgeted: FakeLedger):
    text = said("budget", "set", "bio", "--carry-over", "all", "--overdraft", "0.5")
    assert text == (
        "bio: 10 slice-hours a month, carries over all, overdraft 0.5"
        " (was 10 slice-hours a month)\n"
    )
    assert [one.kind for one in budgeted.entered] == ["roll"]


def test_a_new_amount_counts_at_once_where_the_period_has_begun(budgeted: FakeLedger):
    assert "2.5 slice-hours more" in said("budget", "set", "bio", "--amount", "12.5")
    assert budgeted.entered[-1].amount == 9_000_000


def test_another_period_says_what_of_the_one_before_is_gone(ledger: FakeLedger):
    """What was granted to a budget without periods was gone, unsaid."""
    said("tenant", "import")
    said("budget", "set", "bio", "--period", "none", "--amount", "10")
    ledger.budgets.enter(BudgetEntry("bio", "roll", 36_000_000, 0, "slicewise", ""), None)
    said("budget", "grant", "bio", "--amount", "1.25", "--reason", "paper")
    assert read("budget", "set", "bio", "--overdraft", "1")["lost"] == 0  # type: ignore[index,call-overload]
    text = said("budget", "set", "bio", "--period", "month", "--carry-over", "1")
    assert "10.25 slice-hours that were left are gone." in text
    assert "slicewise budget grant bio --amount 10.25 --reason WHY" in text


def test_grants_and_adjustments_are_booked_with_their_reasons(budgeted: FakeLedger):
    said("budget", "grant", "bio", "--amount", "0.5", "--reason", "paper")
    said("budget", "adjust", "bio", "--amount=-0.25", "--reason", "twice")
    found = [(one.kind, one.amount, one.reason) for one in budgeted.entered[1:]]
    assert found == [("grant", 1_800_000, "paper"), ("adjust", -900_000, "twice")]
    assert budgeted.entered[1].author == options.author_name()


def test_a_budget_of_tokens_is_one_of_its_own(budgeted: FakeLedger):
    tokens = ("--meter", "tokens")
    text = said("budget", "set", "bio", *tokens, "--period", "none", "--amount", "5000")
    assert "bio: 5,000 tokens once\n" in text
    roll = BudgetEntry("bio", "roll", 5000, 0, "slicewise", "", meter="tokens")
    budgeted.budgets.enter(roll, None)
    grant = said("budget", "grant", "bio", *tokens, "--amount", "20", "--reason", "r")
    assert grant == "bio: 20 tokens more; 5,020 are left\n"
    (found,) = read("budget", "show", "bio", *tokens)
    assert (found["left"], found["budget"]["meter"]) == (5020, "tokens")
    assert "5,020" in said("budget", "show", *tokens)
    assert "20" in said("budget", "history", "bio", *tokens)
    (slices,) = read("budget", "show", "bio")
    assert slices["left"] == 36_000_000
    assert "no budget any more" in said("budget", "delete", "bio", *tokens)
    assert budgeted.found["bio"].token_budget is None
    assert budgeted.found["bio"].budget is not None


def test_nothing_is_granted_that_the_period_to_come_would_take_back(ledger: FakeLedger):
    said("tenant", "import")
    said("budget", "set", "bio", "--period", "none", "--amount", "10")
    grant = ("budget", "grant", "bio", "--amount", "1", "--reason", "r")
    assert refused(ledger, *grant).refusal.code == "SW-BUSY"
    ledger.budgets.enter(BudgetEntry("bio", "roll", 36_000_000, 0, "slicewise", ""), None)
    assert "11.00 are left" in said(*grant)


def test_of_a_run_that_has_outlived_its_reservation_nothing_is_set_aside(budgeted: FakeLedger):
    start_s = int(time.time()) - 3600
    run = Run(RunKey("c", 1, start_s), "bio", "alice", "1", {}, Millislices(1000), "bio")
    reserved = Transfer(TransferKind.RESERVE, MillisliceSeconds(5000), start_s + 5)
    budgeted.post([Charge(run, 0, (reserved,))])
    (found,) = read("budget", "show", "bio")
    assert found["reserved"] == 0  # type: ignore[index]
    assert found["left"] <= 36_000_000 - 3_600_000  # type: ignore[index]


def test_what_is_left_and_used_of_a_budget_adds_up_and_ends_at_this_rate(budgeted: FakeLedger):
    said("budget", "grant", "bio", "--amount", "2", "--reason", "paper")
    start_s = int(time.time()) - 1800
    run = Run(RunKey("c", 1, start_s), "bio", "alice", "1", {}, Millislices(2000), "bio")
    steps = Transfer(TransferKind.RESERVE, MillisliceSeconds(2000 * 3600), start_s + 3600)
    budgeted.post([Charge(run, 0, (steps,))])
    before_s = int(time.time())
    (found,) = read("budget", "show", "bio")
    assert found["had"] == 12 * 3_600_000
    assert found["left"] + found["used"] == 12 * 3_600_000
    assert found["rate"] == 2000
    # 12 slice-hours less the 1 that is used last for 5.5 hours of 2 slices.
    assert abs(found["ends_s"] - before_s - 5.5 * 3600) < 600
    (listed,) = read("budget", "show")
    assert (listed["used"], listed["had"]) == (None, None)
    text = said("budget", "show", "bio")
    assert "ends in 5 h" in text or "lasts" in text


def test_what_was_ever_used_of_a_budget_without_periods_is_found_without_its_history(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    said("tenant", "import")
    said("budget", "set", "bio", "--period", "none", "--amount", "10")
    now_s = int(time.time())
    for job_id, start_s, kinds in (
        (1, 1000, (TransferKind.RESERVE, TransferKind.POST)),
        (2, now_s - 9000, (TransferKind.RESERVE,)),
    ):
        run = Run(RunKey("c", job_id, start_s), "bio", "alice", "1", {}, Millislices(1000), "bio")
        steps = (Transfer(kind, MillisliceSeconds(60_000), start_s + 60) for kind in kinds)
        ledger.charges.post([Charge(run, 0, tuple(steps))])
    ledger.budgets.enter(BudgetEntry("bio", "roll", 36_000_000, 0, "slicewise", ""), None)
    used = ledger.audit.used_of_budget("bio", 0, now_s)
    monkeypatch.delattr(MemoryStore, "used_of_budget")
    (found,) = read("budget", "show", "bio")
    assert found["used"] == used == 120_000


def test_the_budget_that_pays_for_a_tenant_is_shown_to_it(ledger: FakeLedger):
    said("tenant", "import")
    said("budget", "set", "physics", "--period", "none", "--amount", "1")
    (found,) = read("budget", "show", "optics")
    assert found["tenant"] == "physics"


def test_a_deleted_budget_says_who_pays(budgeted: FakeLedger):
    assert "only its quota limits it" in said("budget", "delete", "bio")
    said("budget", "set", "physics", "--period", "day", "--amount", "1")
    said("budget", "set", "optics", "--period", "day", "--amount", "1")
    assert "physics pays for its new runs" in said("budget", "delete", "optics")


# The ledger


def test_verify_says_what_it_compared_or_fails_with_the_faults(ledger: FakeLedger):
    assert "5 transfers, 4 accounts" in said("ledger", "verify")
    ledger.verification = Verification(5, 4, 0, 1500, ("bio's used is 1 too high",))
    error = refused(ledger, "ledger", "verify")
    assert error.refusal.code == "SW-LEDGER-IMBALANCE"
    assert "1,500 in the ledger's units" in error.refusal.message
    assert "bio's used is 1 too high" in error.refusal.message


def test_verify_fails_where_a_seal_that_was_kept_is_gone(ledger: FakeLedger):
    assert "5 transfers" in said("ledger", "verify", "--seal", f" {'5F3A' * 16} ")
    error = refused(ledger, "ledger", "verify", "--seal", "77" * 32)
    assert error.refusal.code == "SW-LEDGER-IMBALANCE"
    assert f"seal {'77' * 32} is not in the chain" in error.refusal.message
    assert "add up" not in error.refusal.message


@pytest.mark.parametrize("typed", ["77", "5f3a" * 15, "5f3a" * 17, "g" * 64])
def test_what_is_no_seal_is_a_mistake_in_typing_and_no_alarm(ledger: FakeLedger, typed: str):
    with pytest.raises(typer.BadParameter, match="64 hexadecimal digits"):
        CliRunner().invoke(
            app,
            ["ledger", "verify", "--seal", typed],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_an_export_is_one_line_per_transfer(ledger: FakeLedger):
    rows = "1,bio,5\n2,physics,5\n3,bio,5\n"
    assert said("ledger", "export") == f"id,tenant,amount_millislice_s\n{rows}"
    first, *others = said("ledger", "export", "--format", "jsonl").splitlines()
    assert json.loads(first) == {"id": 1, "tenant": "bio", "amount_millislice_s": 5}
    assert len(others) == 2


def test_an_export_that_breaks_leaves_the_file_as_it_was(ledger: FakeLedger, tmp_path: Path):
    file = tmp_path / "ledger.csv"
    said("ledger", "export", "--output", str(file))
    whole = file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    ledger.verification = Verification(0, 0, 0, 0, ("breaks",))
    with pytest.raises(SlicewiseError, match="SW-DATABASE-DOWN"):
        CliRunner().invoke(app, ("ledger", "export", "--output", str(file)), catch_exceptions=False)
    assert file.read_text() == whole
    assert list(tmp_path.iterdir()) == [file]
    error = refused(ledger, "ledger", "export", "--output", str(tmp_path / "no" / "such"))
    assert error.refusal.code == "SW-OUTPUT"


# Costs


def test_costs_follow_the_dominant_share_and_the_weight(ledger: FakeLedger):
    costs = {one["profile"]: one for one in read("mig", "costs")}  # type: ignore[attr-defined]
    assert costs["1g.20gb"]["cost_millislices"] == 1750
    assert (costs["1g.20gb"]["compute_share"], costs["1g.20gb"]["memory_share"]) == ("1/7", "2/8")
    assert "A30-24GB" not in said("mig", "costs")
    assert "A30-24GB" in said("mig", "costs", "--all")


# Bad input

SQL = "x'; DROP TABLE slicewise.transfers; --"
GRANT = ("budget", "grant", "bio", "--reason", "r")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("tenant", "create", "nobody"), "SW-TENANT-UNKNOWN"),
        (("tenant", "create", SQL), "SW-VALUE"),
        (("tenant", "create", "\udcff"), "SW-VALUE"),
        (("tenant", "create", "root"), "SW-VALUE"),
        (("tenant", "move", "bio", "--parent", "nobody"), "SW-TENANT-UNKNOWN"),
        (("tenant", "move", "physics", "--parent", "optics"), "SW-TENANT-CHILDREN"),
        (("tenant", "show", SQL), "SW-TENANT-UNKNOWN"),
        (("tenant", "delete", "nobody"), "SW-TENANT-UNKNOWN"),
        (("tenant", "delete", "physics"), "SW-TENANT-CHILDREN"),
        (("tenant", "delete", "bio", "--yes", "--reason", "\udcff"), "SW-VALUE"),
        (("tenant-quota", "set", "nobody", "--nominal", "3"), "SW-TENANT-UNKNOWN"),
        (("tenant-quota", "set", SQL, "--nominal", "3"), "SW-VALUE"),
        (("tenant-quota", "set", "a\x1b[31mb", "--nominal", "3"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--nominal=-1"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--nominal", "9999999"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--nominal", "\udcff"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--lending-limit=-1"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--weight", "0"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--weight", str(10**30)), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--limit", "1g.10gb=-1"), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--limit", SQL), "SW-VALUE"),
        (("tenant-quota", "set", "bio", "--weight", "2", "--reason", "a\nb"), "SW-VALUE"),
        (("tenant-quota", "history", SQL), "SW-QUOTA-NONE"),
        (("budget", "set", "nobody", "--period", "day", "--amount", "1"), "SW-TENANT-UNKNOWN"),
        (("budget", "set", "optics", "--amount", "1"), "SW-BUDGET-NONE"),
        (("budget", "set", "bio", "--period", "year"), "SW-VALUE"),
        (("budget", "set", "bio", "--amount=-1"), "SW-VALUE"),
        (("budget", "set", "bio", "--amount", "1" + "0" * 11), "SW-VALUE"),
        (("budget", "set", "bio", "--overdraft", "much"), "SW-VALUE"),
        (("budget", "delete", "optics"), "SW-BUDGET-NONE"),
        (("budget", "show", "optics"), "SW-BUDGET-NONE"),
        (("budget", "history", "nobody"), "SW-TENANT-UNKNOWN"),
        ((*GRANT, "--amount", "0"), "SW-VALUE"),
        ((*GRANT, "--amount=-1"), "SW-VALUE"),
        ((*GRANT, "--amount", "0.000001"), "SW-VALUE"),
        (("budget", "grant", "bio", "--amount", "1", "--reason", " "), "SW-VALUE"),
        (("budget", "adjust", "bio", "--amount", "1", "--reason", "\udcff"), "SW-VALUE"),
        (("budget", "adjust", "optics", "--amount", "1", "--reason", "r"), "SW-BUDGET-NONE"),
        (("ledger", "statement", SQL), "SW-TENANT-UNKNOWN"),
        (("ledger", "balance", "nobody"), "SW-TENANT-UNKNOWN"),
        (("why", "--limits", "nobody"), "SW-TENANT-UNKNOWN"),
    ],
)
def test_bad_input_has_a_code_and_a_hint_and_writes_nothing(
    budgeted: FakeLedger, words: tuple[str, ...], code: str
):
    assert refused(budgeted, *words).refusal.code == code


def test_a_time_that_is_none_is_told_how_to_write_one(budgeted: FakeLedger):
    for command in ("statement", "export"):
        result = CliRunner().invoke(app, ("ledger", command, "--since", "yes"))
        assert result.exit_code == 2
        assert "--since': 'yes' is not a time. Write it as 2026-01-31" in result.output
    days = ("2026-01-31", "2026-01-31T18:30", "2026-01-31T18:30:05", "today", "yesterday")
    for since in (*days, "30min", "1h", "7d"):
        result = CliRunner().invoke(app, ("ledger", "statement", "--since", since))
        assert result.exit_code == 0


def test_an_account_with_an_odd_name_is_left_out_of_an_import(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
):
    slurm_has(monkeypatch, {**ACCOUNTS, "a b": "root"})
    result = CliRunner().invoke(app, ("tenant", "import"))
    assert isinstance(result.exception, SlicewiseError)
    assert result.exception.refusal.code == "SW-TENANT-IMPORT"
    assert sorted(ledger.tenants.policy()) == ["bio", "optics", "physics"]


def test_every_operators_command_has_an_example():
    groups = (tenant.tenant_app, quota.tenant_quota_app, budget.budget_app)
    commands = [one for group in groups for one in typer.main.get_group(group).commands.values()]
    assert [one.name for one in commands if "slicewise" not in (one.epilog or "")] == []


def test_the_database_in_use_is_named(
    ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A restored one was not used, because a variable beat the file, and nothing showed it."""
    url = "postgresql://olga:geheim@db:6543/slicewise_restored"
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", url)
    monkeypatch.setattr(ledger_db, "load_settings", lambda: SETTINGS)
    monkeypatch.setattr(schema_revisions, "current_of", lambda _: schema_revisions.head())
    text = said("ledger", "db", "current")
    assert text.endswith("up to date: database 'slicewise_restored' at db:6543, role olga\n")
    assert "slicewise_restored" in str(read("ledger", "db", "current"))

    async def serve(*_: object) -> None:
        pass

    monkeypatch.setattr(daemon, "load_settings", lambda _: SETTINGS)
    monkeypatch.setattr(daemon, "configure_logging", lambda *_: None)
    monkeypatch.setattr(daemon, "_require_slurm_user", lambda _: None)
    monkeypatch.setattr(daemon, "_serve", serve)
    caplog.set_level("INFO")
    said("daemon")
    (line,) = (one for one in caplog.messages if one.startswith("ledger_database"))
    assert "host=db port=6543 database=slicewise_restored role=olga" in line
    assert "geheim" not in text + line


def test_the_dump_of_the_how_to_does_not_read_the_daemons_url():
    """Its role may not read the schema of the launcher: the line failed as it stood."""
    page = (Path(__file__).parents[5] / "docs" / "how-to" / "backup.md").read_text(encoding="utf-8")
    dumps = [line for line in page.splitlines() if "pg_dump" in line]
    assert dumps
    assert all("url" not in line and line.startswith("sudo -u postgres") for line in dumps)
