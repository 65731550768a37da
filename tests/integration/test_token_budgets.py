"""Budgets of tokens on a real PostgreSQL: who pays, what may be held, when a period begins."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from ledger_locks import wait_for_a_lock

from slicewise.cluster.language.meters import OUTPUT_TOKENS, TOKENS
from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import TokenAllowance, UsageRecord, WantedAllowance
from slicewise.slurm_plugin.ledger.allowances import AllowanceTime
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.rollover import roll_over_token_budgets
from slicewise.slurm_plugin.rules.accounting.budgets import amend_of, unspent
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Budget, TenantUpdate

pytestmark = pytest.mark.integration

ZONE = "Europe/Berlin"
NOW_S = 1_764_450_000
"""In November 2025."""
BEGUN_S = period_start_s(Period.MONTH, NOW_S, ZONE)
NEXT_S = next_start_s(Period.MONTH, NOW_S, ZONE) or 0
MONTHLY = Budget(Period.MONTH, 1000, meter=TOKENS.name)


def a_record(number: int, tokens: int, payer: str = "vision", end_s: int = NOW_S) -> UsageRecord:
    return UsageRecord(
        number=number,
        payer=payer,
        person="alice",
        key_id="0123456789ab",
        service="science/chat",
        start_ms=end_s * 1000,
        end_ms=end_s * 1000,
        prompt_tokens=tokens - tokens // 3,
        output_tokens=tokens // 3,
    )


class Site:
    """The tenant lab with vision and speech below it, of which the daemon's part is done here."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        for name, parent in (("lab", ""), ("vision", "lab"), ("speech", "lab")):
            ledger.tenants.change(TenantUpdate(name, parent=parent), "olga", "")

    def set_budget(self, budget: Budget, tenant: str = "lab", at_s: int = NOW_S) -> int:
        begun_s = period_start_s(budget.period, at_s, ZONE)
        amend = amend_of(tenant, budget, begun_s, "olga", "")
        update = TenantUpdate.of_budget(tenant, TOKENS.name, budget)
        return self.ledger.tenants.set_budget(update, "olga", "", amend, TOKENS.name)

    def roll(self, at_s: int = NOW_S) -> tuple[BudgetEntry, ...]:
        change_id, policy = self.ledger.tenants.change_id(), self.ledger.tenants.policy()
        return roll_over_token_budgets(self.ledger, policy, ZONE, at_s, change_id=change_id)

    def post(self, *records: UsageRecord, boot: str = "one") -> None:
        paying = payers(self.ledger.tenants.policy(), TOKENS.name)
        self.ledger.usage.post(boot, records, ZONE, paying)

    def left(self, tenant: str = "lab") -> int:
        return unspent(self.ledger.budgets.balances(TOKENS.name).get(tenant))

    def allowed(
        self,
        boot: str = "one",
        wanted: Mapping[str, int] = {},
        limits: tuple[SubjectLimits, ...] = (),
        at_s: float = NOW_S,
    ) -> Mapping[str, TokenAllowance]:
        wishes = [WantedAllowance(tenant=name, tokens=tokens) for name, tokens in wanted.items()]
        at, policy = AllowanceTime(at_s, ZONE, 10.0), self.ledger.tenants.policy()
        given = self.ledger.allowances.give(boot, wishes, limits, at, policy)
        return {allowance.tenant: allowance for allowance in given}

    def is_sound(self) -> bool:
        self.ledger.charges.seal()
        found = self.ledger.audit.verify()
        assert found.faults == ()
        return found.imbalance == 0


@pytest.fixture
def site(ledger: Ledger) -> Site:
    return Site(ledger)


@pytest.fixture
def budgeted(site: Site) -> Site:
    site.set_budget(MONTHLY)
    assert [entry.amount for entry in site.roll()] == [1000]
    return site


def test_the_nearest_budget_above_pays_for_tokens(budgeted: Site):
    budgeted.post(a_record(0, 90), a_record(1, 60, "speech"), a_record(2, 30, "speech"))
    assert budgeted.left() == 1000 - 180
    balances = budgeted.ledger.budgets.balances(TOKENS.name)
    assert [balances[name].used for name in ("lab", "vision", "speech")] == [0, 90, 90]
    # Of other meters no tenant has a budget: each pays itself.
    assert budgeted.ledger.budgets.balances(OUTPUT_TOKENS.name)["vision"].available == -30
    assert budgeted.is_sound()


def test_who_pays_is_fixed_when_it_is_booked(budgeted: Site):
    budgeted.post(a_record(0, 90))
    budgeted.set_budget(replace(MONTHLY, amount=500), "vision")
    budgeted.roll()
    budgeted.post(a_record(0, 90), a_record(1, 30))
    assert (budgeted.left(), budgeted.left("vision")) == (910, 470)
    off = TenantUpdate.of_budget("vision", TOKENS.name, "off")
    budgeted.ledger.tenants.change(off, "olga", "")
    budgeted.post(a_record(2, 60))
    assert (budgeted.left(), budgeted.left("vision")) == (850, 470)
    assert budgeted.ledger.tenants.policy()["vision"].token_budget is None
    assert budgeted.ledger.tenants.policy()["lab"].token_budget == MONTHLY
    assert budgeted.is_sound()


def test_a_budget_of_tokens_touches_none_of_slices(budgeted: Site):
    slices = Budget(Period.DAY, 7)
    begun_s = period_start_s(Period.DAY, NOW_S, ZONE)
    amend = amend_of("lab", slices, begun_s, "olga", "")
    budgeted.ledger.tenants.set_budget(TenantUpdate("lab", budget=slices), "olga", "", amend)
    lab = budgeted.ledger.tenants.policy()["lab"]
    assert (lab.budget, lab.token_budget) == (slices, MONTHLY)
    assert budgeted.ledger.budgets.rollovers() == {}
    assert budgeted.ledger.budgets.rollovers(TOKENS.name) == {"lab": BEGUN_S}
    newest, *_ = budgeted.ledger.tenants.history("lab")
    assert (newest.update.budget, newest.update.token_budget) == (slices, None)


def test_a_new_amount_counts_at_once(budgeted: Site):
    budgeted.post(a_record(0, 300))
    assert budgeted.set_budget(replace(MONTHLY, amount=1500)) == 500
    assert budgeted.left() == 1200
    assert budgeted.roll() == ()


@pytest.mark.parametrize(
    ("used", "carry_over", "carried"),
    [(300, 0, 0), (300, 200, 200), (900, 200, 100), (1200, 9, -200)],
)
def test_a_period_begins_with_its_amount_and_what_is_carried(
    budgeted: Site, used: int, carry_over: int, carried: int
):
    budgeted.set_budget(replace(MONTHLY, carry_over=carry_over))
    budgeted.post(a_record(0, used))
    budgeted.ledger.charges.seal()
    # The daemon is late: requests of the new month are booked before it begins in the ledger.
    budgeted.post(a_record(1, 50, end_s=NEXT_S + 5), boot="two")
    (roll,) = budgeted.roll(NEXT_S + 60)
    assert roll.period_start_s == NEXT_S
    assert budgeted.left() == 1000 + carried - 50
    assert budgeted.roll(NEXT_S + 60) == ()
    assert budgeted.ledger.budgets.used_since("lab", NEXT_S, TOKENS.name) == 50
    assert budgeted.is_sound()


def test_what_was_used_before_there_was_a_budget_is_not_taken_out_of_it(site: Site):
    site.post(a_record(0, 300))
    site.set_budget(replace(MONTHLY, period=Period.NONE))
    site.roll()
    assert site.left() == 1000


def test_a_period_begins_while_tokens_are_posted(budgeted: Site, monkeypatch: pytest.MonkeyPatch):
    """It is decided again where a batch came in between, and never on half of one."""
    numbers, balances = iter(range(1, 4)), budgeted.ledger.budgets.balances

    def posting(meter: str) -> Mapping[str, object]:
        found = balances(meter)
        if (number := next(numbers, None)) is not None:
            budgeted.post(a_record(number, 30, end_s=NEXT_S + number))
        return found

    monkeypatch.setattr(budgeted.ledger.budgets, "balances", posting)
    (roll,) = budgeted.roll(NEXT_S + 60)
    monkeypatch.undo()
    assert (roll.period_start_s, next(numbers, None)) == (NEXT_S, None)
    assert budgeted.left() == 1000 - 90


def test_a_budget_that_is_used_up_gives_nothing_and_says_when_more_comes(budgeted: Site):
    budgeted.post(a_record(0, 1200))
    for allowance in budgeted.allowed(wanted={"vision": 500}).values():
        assert (allowance.tokens, allowance.is_exact) == (0, True)
        assert (allowance.limit, allowance.payer) == ("token_budget", "lab")
        assert allowance.used_up_until == "2025-12-01"
        assert allowance.retry_s == NEXT_S - NOW_S
    budgeted.ledger.budgets.enter(
        BudgetEntry("lab", "grant", 600, None, "olga", "more", meter=TOKENS.name), None
    )
    assert budgeted.allowed(wanted={"vision": 400})["vision"].tokens == 400


def test_a_budget_that_has_not_begun_limits_nothing(site: Site):
    site.set_budget(MONTHLY)
    assert site.allowed() == {}


def test_an_overdraft_is_given_out_as_well(budgeted: Site):
    budgeted.set_budget(replace(MONTHLY, overdraft=500))
    budgeted.post(a_record(0, 1200))
    assert budgeted.allowed(wanted={"vision": 900})["vision"].tokens == 300


def test_a_limit_and_a_budget_hold_together(budgeted: Site):
    def allowed(tokens_per_month: int) -> TokenAllowance:
        limits = RequestLimits(tokens_per_month=tokens_per_month)
        limit = SubjectLimits(tenant="vision", limits=limits)
        return budgeted.allowed(wanted={"vision": 600}, limits=(limit,))["vision"]

    budgeted.post(a_record(0, 300))
    # What is wanted, and a third of half of what then remains.
    assert allowed(10_000).tokens == 600 + 16
    # The tenant's own limit is the less one, and the answer says which it was.
    assert allowed(400).tokens == 100
    ended = allowed(300)
    assert (ended.tokens, ended.is_exact) == (0, True)
    assert (ended.limit, ended.used_up_until) == ("tokens_per_month", "2025-12-01")


def test_no_check_passes_although_the_budget_is_used_up(budgeted: Site):
    """LiteLLM#26672: what was checked was not yet what had been used."""
    budgeted.post(a_record(0, 600))
    assert budgeted.allowed("one", {"vision": 400})["vision"].tokens == 400
    assert sum(one.tokens for one in budgeted.allowed("two", {"speech": 400}).values()) == 0
    budgeted.post(a_record(1, 400))
    ended = budgeted.allowed("two", {"speech": 1}).values()
    assert {(one.tokens, one.payer, one.used_up_until) for one in ended} == {
        (0, "lab", "2025-12-01")
    }


def test_many_gateways_that_pass_one_check_get_no_more_than_the_budget_has(budgeted: Site):
    """LiteLLM#34732, of tenants that one budget above them pays for."""

    def given(turn: int) -> int:
        names = ("vision", "speech") if turn % 2 else ("speech",)
        allowed = budgeted.allowed(f"g{turn}", dict.fromkeys(names, 300))
        return sum(one.tokens for one in allowed.values())

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(given, range(8))) <= 1000


def test_who_posts_for_one_budget_never_waits_for_another(budgeted: Site):
    def post(turn: int) -> None:
        names = ("vision", "speech", "lab")
        numbers = range(30) if turn % 2 else reversed(range(30))
        records = [a_record(number, 3, names[number % 3]) for number in numbers]
        budgeted.post(*records, boot=f"boot-{turn % 3}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(post, range(24)))
    assert budgeted.left() == 1000 - 3 * 90
    assert budgeted.is_sound()


def test_who_begins_a_period_and_waits_for_a_seal_holds_no_balance(budgeted: Site, database: str):
    with psycopg.connect(database) as sealer, ThreadPoolExecutor(1) as threads:
        sealer.execute("LOCK TABLE slicewise.seals IN SHARE ROW EXCLUSIVE MODE")
        rolled = threads.submit(budgeted.roll, NEXT_S)
        wait_for_a_lock(database)
        with psycopg.connect(database) as poster:
            poster.execute("SELECT FROM slicewise.balances FOR UPDATE NOWAIT")
        sealer.commit()
        assert len(rolled.result()) == 1


LESS_USED = """
UPDATE slicewise.balances b SET debits = debits - 1 FROM slicewise.accounts a
 WHERE a.id = b.account_id AND (a.meter, a.tenant, a.kind) = ('tokens', 'lab', 'available')
"""
ANOTHER_PAYER = """
ALTER TABLE slicewise.runs DISABLE TRIGGER append_only;
UPDATE slicewise.runs SET payer = NULL WHERE meter = 'tokens';
ALTER TABLE slicewise.runs ENABLE TRIGGER append_only
"""


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (LESS_USED, "account available of lab"),
        (ANOTHER_PAYER, "from or to a wrong account"),
    ],
)
def test_verify_says_what_was_changed_by_hand(
    budgeted: Site, database: str, change: str, fault: str
):
    budgeted.post(a_record(0, 90))
    assert budgeted.is_sound()
    with psycopg.connect(database) as connection:
        connection.execute(change)  # type: ignore[arg-type]
    assert any(fault in words for words in budgeted.ledger.audit.verify().faults)
