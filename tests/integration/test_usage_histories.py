"""Random histories of usage and allowances on a real PostgreSQL, beside a model in memory."""

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

from slicewise.cluster.language.meters import USAGE
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import UsageRecord, WantedAllowance
from slicewise.slurm_plugin.ledger.allowances import AllowanceTime
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

ZONE = "Europe/Berlin"
START_S = 1_764_450_000
LIMIT = 500
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
    """Two gateways post in any order, repeat themselves, die, and hold tokens of one limit."""

    database = ""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.database, uuid4().hex)
        self.booked = set[tuple[str, int]]()
        self.now_s = float(START_S)
        self.held = dict[str, tuple[int, float]]()

    @rule(boot=st.sampled_from(BOOTS), numbers=NUMBERS)
    def post(self, boot: str, numbers: list[int]) -> None:
        records = [a_record(boot, number) for number in dict.fromkeys(numbers)]
        new = self.ledger.usage.post(boot, records, ZONE)
        assert new == {number for number in numbers if (boot, number) not in self.booked}
        self.booked |= {(boot, number) for number in numbers}
        tokens = sum(
            record.prompt_tokens + record.output_tokens
            for record in records
            if record.number in new and record.payer == "vision"
        )
        if boot in self.held:
            held, until_s = self.held[boot]
            self.held[boot] = (max(0, held - tokens), until_s)

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
        self.held[boot] = (given.tokens, self.now_s + 10)
        living = [tokens for tokens, until_s in self.held.values() if until_s > self.now_s]
        assert sum(living) <= max(0, LIMIT - self.posted_of_vision())

    def posted_of_vision(self) -> int:
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
        self.ledger.usage.forget_person(person)

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
                1,
            )
            for meter, amount in zip(USAGE, amounts, strict=True):
                wanted[meter.name, record.payer] += amount
        for meter in USAGE:
            balances = self.ledger.budgets.balances(meter.name)
            for payer in PAYERS:
                balance = balances.get(payer)
                assert (balance.used if balance else 0) == wanted[meter.name, payer]

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
