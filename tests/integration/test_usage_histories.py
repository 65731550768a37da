"""Random histories of usage, allowances and budgets on a real PostgreSQL, beside a model."""

from collections import Counter
from uuid import uuid4

import psycopg
import pytest
from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from slicewise.cluster.language.meters import TOKENS, USAGE
from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import UsageRecord, WantedAllowance
from slicewise.slurm_plugin.ledger.allowances import AllowanceTime
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.rollover import roll_over_token_budgets
from slicewise.slurm_plugin.rules.accounting.budgets import amend_of, unspent
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy, TenantUpdate

pytestmark = pytest.mark.integration

ZONE = "Europe/Berlin"
START_S = 1_764_450_000
LIMIT = 500
NEXT_MONTH_S = next_start_s(Period.MONTH, START_S, ZONE) or 0
PAYERS, PERSONS, BOOTS = ("vision", "speech"), ("alice", "bob", "-"), ("one", "two")
NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=6)


def a_record(boot: str, number: int) -> UsageRecord:
    """The record that has this name: always the same."""
    end_ms = (START_S + 700 * number) * 1000
    return UsageRecord(
        number=number,
        payer=PAYERS[number % 2],
        person=PERSONS[number % 3],
        key_id=PERSONS[number % 3].replace("-", "") or "-",
        service="science/chat",
        array_job_id=814,
        index=number % 4,
        run_start_s=START_S - 100,
        start_ms=end_ms,
        end_ms=end_ms,
        prompt_tokens=number,
        cached_prompt_tokens=number // 2,
        output_tokens=number % 5 + len(boot),
    )


class Histories(RuleBasedStateMachine):
    """Two gateways post in any order, repeat themselves, die, and hold tokens of one limit.

    All payers are below the tenant lab, whose budget of tokens is set, granted, taken away and
    rolled meanwhile; so may speech's own be.
    """

    database = ""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.database, uuid4().hex)
        self.booked = set[tuple[str, int]]()
        self.now_s = float(START_S)
        self.held = dict[str, tuple[int, float]]()
        self.of_budgets = dict[str, tuple[float, Counter[str]]]()
        self.paid = Counter[str]()
        self.granted = Counter[str]()
        for name, parent in (("lab", ""), *((payer, "lab") for payer in PAYERS)):
            self.ledger.tenants.change(TenantUpdate(name, parent=parent), "olga", "")

    @property
    def policy(self) -> Policy:
        return self.ledger.tenants.policy()

    @rule(
        tenant=st.sampled_from(("lab", "speech")),
        period=st.sampled_from(Period),
        amounts=st.tuples(*3 * [st.integers(0, 300)]),
    )
    def set_budget(self, tenant: str, period: Period, amounts: tuple[int, int, int]) -> None:
        budget = Budget(period, *amounts, meter=TOKENS.name)
        begun_s = period_start_s(period, int(self.now_s), ZONE)
        amend = amend_of(tenant, budget, begun_s, "olga", "")
        update = TenantUpdate.of_budget(tenant, TOKENS.name, budget)
        self.granted[tenant] += self.ledger.tenants.set_budget(
            update, "olga", "", amend, TOKENS.name
        )

    @rule(tenant=st.sampled_from(("lab", "speech")))
    def take_budget_away(self, tenant: str) -> None:
        update = TenantUpdate.of_budget(tenant, TOKENS.name, "off")
        self.ledger.tenants.change(update, "olga", "")

    @rule(tenant=st.sampled_from(("lab", "speech")), amount=st.integers(-100, 100).filter(bool))
    def grant(self, tenant: str, amount: int) -> None:
        entry = BudgetEntry(tenant, "adjust", amount, None, "olga", "", meter=TOKENS.name)
        assert self.ledger.budgets.enter(entry, None)
        self.granted[tenant] += amount

    @rule()
    def roll(self) -> None:
        policy, change_id = self.policy, self.ledger.tenants.change_id()
        args = self.ledger, policy, ZONE, int(self.now_s)
        for entry in roll_over_token_budgets(*args, change_id=change_id):
            self.granted[entry.tenant] += entry.amount
        assert roll_over_token_budgets(*args, change_id=change_id) == ()

    @rule(days=st.sampled_from((1, 8, 32)))
    def a_period_ends(self, days: int) -> None:
        self.now_s += days * 86_400

    @rule(boot=st.sampled_from(BOOTS), wanted=st.integers(0, 400))
    def ask_of_budgets(self, boot: str, wanted: int) -> None:
        """All gateways together never hold more of a budget than it has left."""
        policy = self.policy
        wish = WantedAllowance(tenant="vision", tokens=wanted)
        at = AllowanceTime(self.now_s, ZONE, 10.0)
        given = self.ledger.allowances.give(boot, [wish], [], at, policy)
        self.held.pop(boot, None)
        self.of_budgets[boot] = (
            self.now_s + 10,
            Counter({one.tenant: one.tokens for one in given}),
        )
        paying, begun = payers(policy, TOKENS.name), self.ledger.budgets.rollovers(TOKENS.name)
        for payer in {paying[one.tenant] for one in given}:
            budget = policy[payer].token_budget
            assert payer in begun
            assert budget is not None
            held = Counter[str]()
            for of_boot, (until_s, tokens) in self.of_budgets.items():
                if until_s > self.now_s:
                    held[of_boot] = sum(n for name, n in tokens.items() if paying[name] == payer)
            left = self.granted[payer] - self.paid[payer] + budget.overdraft
            assert held[boot] <= max(0, left - (held.total() - held[boot]))

    @rule(boot=st.sampled_from(BOOTS), numbers=NUMBERS)
    def post(self, boot: str, numbers: list[int]) -> None:
        records = [a_record(boot, number) for number in dict.fromkeys(numbers)]
        paying = payers(self.policy, TOKENS.name)
        new = self.ledger.usage.post(boot, records, ZONE, paying)
        assert new == {number for number in numbers if (boot, number) not in self.booked}
        self.booked |= {(boot, number) for number in numbers}
        tokens = Counter[str]()
        for record in records:
            if record.number in new:
                tokens[record.payer] += record.prompt_tokens + record.output_tokens
        for payer, amount in tokens.items():
            self.paid[paying[payer]] += amount
        if boot in self.held:
            held, until_s = self.held[boot]
            self.held[boot] = (max(0, held - tokens["vision"]), until_s)
        if boot in self.of_budgets:
            self.of_budgets[boot][1].subtract(tokens)
            for name, left in self.of_budgets[boot][1].items():
                self.of_budgets[boot][1][name] = max(0, left)

    @rule(boot=st.sampled_from(BOOTS), numbers=NUMBERS)
    def die_before_the_end(self, boot: str, numbers: list[int]) -> None:
        """What the statement did is undone whole."""
        records = [a_record(boot, number).model_dump() for number in dict.fromkeys(numbers)]
        batch = {
            "cluster": self.ledger.usage._cluster,
            "boot": boot,
            "zone": ZONE,
            "records": records,
        }
        with psycopg.connect(self.database) as connection:
            value = psycopg.types.json.Jsonb(batch)
            connection.execute("SELECT slicewise.post_usage(%s)", (value,))
            connection.rollback()

    @rule(boot=st.sampled_from(BOOTS), wanted=st.integers(0, 400))
    def ask(self, boot: str, wanted: int) -> None:
        limit = SubjectLimits(tenant="vision", limits=RequestLimits(tokens_per_month=LIMIT))
        wish = WantedAllowance(tenant="vision", tokens=wanted)
        at = AllowanceTime(self.now_s, ZONE, 10.0)
        (given,) = self.ledger.allowances.give(boot, [wish], [limit], at)
        self.of_budgets.pop(boot, None)
        self.held[boot] = (given.tokens, self.now_s + 10)
        living = [tokens for tokens, until_s in self.held.values() if until_s > self.now_s]
        assert sum(living) <= max(0, LIMIT - self.posted_of_vision())

    def posted_of_vision(self) -> int:
        """In the month that it is now: all records are of the first one."""
        if self.now_s >= NEXT_MONTH_S:
            return 0
        return sum(
            record.prompt_tokens + record.output_tokens
            for record in (a_record(*name) for name in self.booked)
            if record.payer == "vision"
        )

    @rule(seconds=st.sampled_from((1, 5, 11)))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(person=st.sampled_from(("alice", "bob")))
    def forget(self, person: str) -> None:
        self.ledger.usage.bar_person(person)
        day = None
        while (gone := self.ledger.usage.forget_person(person, None, day)).day is not None:
            day = gone.day

    @rule()
    def seal(self) -> None:
        self.ledger.charges.seal()

    @invariant()
    def the_accounts_have_what_was_booked(self) -> None:
        wanted = Counter[tuple[str, str]]()
        for name in self.booked:
            record = a_record(*name)
            amounts = (
                *(record.prompt_tokens, record.cached_prompt_tokens, record.output_tokens),
                *(record.prompt_tokens + record.output_tokens, 1),
            )
            for meter, amount in zip(USAGE, amounts, strict=True):
                wanted[meter.name, record.payer] += amount
        for meter in USAGE:
            balances = self.ledger.budgets.balances(meter.name)
            for payer in PAYERS:
                balance = balances.get(payer)
                assert (balance.used if balance else 0) == wanted[meter.name, payer]

    @invariant()
    def budgets_have_what_was_given_and_not_used(self) -> None:
        balances = self.ledger.budgets.balances(TOKENS.name)
        for name in ("lab", *PAYERS):
            assert unspent(balances.get(name)) == self.granted[name] - self.paid[name]

    def teardown(self) -> None:
        try:
            assert self.ledger.audit.verify().faults == ()
        finally:
            self.ledger.close()


def test_every_history_of_usage_adds_up(ledger_database: str):
    class InPostgresql(Histories):
        database = ledger_database

    few = settings(
        max_examples=examples(20, nightly=1000),
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(InPostgresql, settings=few)
