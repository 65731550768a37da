"""Operators, the daemon and crashes around the ledger's policy, as a Hypothesis state machine.

The invariants are written here from the rules, without the functions under test.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.quota.lending import lend
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.tenants import changed, effective_nominal
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Loan,
    Policy,
    Quota,
    Tenant,
    TenantUpdate,
)

CAPACITY = 40

MOST_CHANGES = 10_000
"""More changes of loans than a run makes."""
NAMES = ("org", "lab", "vision", "nlp", "audio", "guest")
names = st.sampled_from(NAMES)
amounts = st.integers(0, 12).map(Millislices)
limits = st.one_of(amounts, st.just(MAX_NOMINAL_MILLISLICES))
seconds = st.integers(0, 9).map(MillisliceSeconds)
budgets = st.builds(Budget, st.sampled_from(Period), seconds, seconds, seconds)


limits_by_type = st.dictionaries(st.sampled_from(["1g.10gb", "3g.40gb"]), st.integers(0, 2))
quotas = {
    "nominal_millislices": amounts,
    "borrowing_limit_millislices": limits,
    "lending_limit_millislices": limits,
    "weight": st.integers(1, 3),
    "type_limits": limits_by_type,
    "model_limits": st.dictionaries(st.just("H200-141GB"), amounts),
}
others = {
    "parent": st.one_of(st.just(""), names),
    "removed": st.booleans(),
    "budget": st.one_of(st.just("off"), budgets),
}


def updates_of(fields: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[TenantUpdate]:
    given = st.fixed_dictionaries({}, optional=dict(fields))
    return st.builds(lambda name, words: TenantUpdate(name, **words), names, given)


updates = st.one_of(
    updates_of(quotas), updates_of(quotas), updates_of(others), updates_of({**quotas, **others})
)
beginnings = st.lists(
    st.tuples(st.integers(0, len(NAMES)), amounts, limits, limits),
    min_size=len(NAMES),
    max_size=len(NAMES),
)
demands = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(0, 25)))
loans_of_anybody = st.lists(
    st.builds(Loan, names, names, st.integers(1, 12).map(Millislices)).filter(
        lambda loan: loan.lender != loan.borrower
    ),
    max_size=5,
    unique_by=lambda loan: (loan.lender, loan.borrower),
)


def below(policy: Policy, name: str) -> set[str]:
    """The tenant and all tenants below it in the tree."""

    def leads(other: str) -> bool:
        return other == name or (other in policy and leads(policy[other].parent))

    return {other for other in policy if leads(other)}


def nominal(policy: Policy, name: str) -> int:
    of_children = sum(nominal(policy, one) for one in policy if policy[one].parent == name)
    return max(policy[name].quota.nominal_millislices, of_children)


def broken_rules(policy: Policy, loans: Sequence[Loan]) -> list[str]:
    """Each rule of loans that these loans break, in words."""
    broken = [f"{one} of no tenant" for one in loans if not {one.lender, one.borrower} <= {*policy}]
    broken += [f"{one} of nothing" for one in loans if one.amount_millislices <= 0]
    for name, tenant in policy.items():
        inside = below(policy, name)
        leaving, entering, own = 0, 0, 0
        for one in loans:
            if one.lender in inside and one.borrower not in inside:
                leaving += one.amount_millislices
            if one.borrower in inside and one.lender not in inside:
                entering += one.amount_millislices
            if one.lender == name:
                own += one.amount_millislices
        of_children = sum(nominal(policy, one) for one in policy if policy[one].parent == name)
        if leaving > tenant.quota.lending_limit_millislices:
            broken.append(f"{leaving} leave {name}")
        if entering > tenant.quota.borrowing_limit_millislices:
            broken.append(f"{entering} enter {name}")
        if own > nominal(policy, name) - of_children:
            broken.append(f"{name} lends {own}, more than its guaranteed quota")
    return broken


class PolicyWorld(RuleBasedStateMachine):
    """Keeps beside the ledger the same policy in memory, as a fold of ``changed``."""

    database: str
    """The database's URL; each world is a cluster of its own in it."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = uuid4().hex
        self.ledger = Ledger(self.database, self.cluster)
        self.policy: dict[str, Tenant] = {}
        self.old_policy: Policy = {}
        self.written: list[TenantUpdate] = []

    @initialize(beginning=beginnings)
    def operator_begins(self, beginning: Sequence[tuple[int, int, int, int]]) -> None:
        """Make a tree of groups; only its leaves have nominal quotas."""
        parents = ["", *NAMES][: len(NAMES)]
        above = [parents[place % (at + 1)] for at, (place, *_) in enumerate(beginning)]
        for name, parent, (_, own, borrowing, lending) in zip(NAMES, above, beginning, strict=True):
            update = TenantUpdate(
                name,
                parent,
                nominal_millislices=Millislices(0 if name in above else own),
                borrowing_limit_millislices=Millislices(borrowing),
                lending_limit_millislices=Millislices(lending),
            )
            self.operator_changes(update)

    def teardown(self) -> None:
        for name in NAMES:
            self.history_is_complete(name)
            self.loans_follow_from_their_history(name)
        self.ledger.close()

    @rule(update=updates)
    def operator_changes(self, update: TenantUpdate) -> None:
        try:
            after = changed(self.policy, update)
        except InvalidInputError as refused:
            self.nothing_written(lambda: self.ledger.tenants.change(update, "olga", "no"), refused)
        else:
            change = self.ledger.tenants.change(update, "olga", "why")
            assert (change.author, change.reason) == ("olga", "why")
            self.written.append(change.update)
            self.policy = dict(after)

    def nothing_written(self, attempt: Callable[[], object], refused: InvalidInputError) -> None:
        before = self.ledger.tenants.change_id()
        with pytest.raises(InvalidInputError, match=refused.refusal.code):
            attempt()
        assert self.ledger.tenants.change_id() == before

    @rule(update=updates)
    def operator_changes_twice(self, update: TenantUpdate) -> None:
        self.operator_changes(update)
        once, loans = self.policy, self.ledger.loans.outstanding()
        if update.tenant in once:
            self.operator_changes(update)
            assert (self.policy, self.ledger.loans.outstanding()) == (once, loans)

    @rule(demand=demands, of_old=st.booleans())
    def daemon_lends(self, demand: Mapping[str, int], of_old: bool) -> None:
        """Lend, and write the same loans again: the second time nothing changes."""
        look = self.old_policy if of_old else self.ledger.tenants.policy()
        loans = lend(look, demand, self.ledger.loans.outstanding(), CAPACITY)
        self.ledger.loans.replace(loans, "demand")
        self.old_policy = self.policy
        self.loans_are_within_limits()
        if not of_old:
            assert self.ledger.loans.outstanding() == tuple(sorted(loans))
        said = self.how_many_loan_changes()
        self.ledger.loans.replace(loans, "again")
        assert self.how_many_loan_changes() == said

    @rule(loans=loans_of_anybody)
    def daemon_is_mistaken(self, loans: list[Loan]) -> None:
        self.ledger.loans.replace(loans, "mistake")

    @rule(update=updates, loans=loans_of_anybody, statement=st.integers(1, 8))
    def crash(self, update: TenantUpdate, loans: list[Loan], statement: int) -> None:
        """Crash while loans, and then a change, are written: all of it is written, or nothing."""
        self.whole_or_nothing(lambda: self.ledger.loans.replace(loans, "crash"), statement)
        try:
            after = dict(changed(self.policy, update))
        except InvalidInputError:
            return
        if self.whole_or_nothing(
            lambda: self.ledger.tenants.change(update, "olga", "crash"), statement
        ):
            self.written.append(self.ledger.tenants.history(update.tenant)[0].update)
            self.policy = after

    def whole_or_nothing(self, attempt: Callable[[], object], statement: int) -> bool:
        """Attempt it with a crash; return whether it was done. If not, nothing may have changed."""
        before = (self.ledger.tenants.change_id(), self.ledger.loans.outstanding())
        with self.crashing_before(statement):
            try:
                attempt()
            except UnreachableError:
                assert (self.ledger.tenants.change_id(), self.ledger.loans.outstanding()) == before
                return False
        return True

    @rule(name=names, nominal=amounts)
    def old_program_sets_a_nominal(self, name: str, nominal: Millislices) -> None:
        try:
            self.old_program_inserts(name, nominal)
        except psycopg.errors.CheckViolation:  # the tenant lends more than that
            return
        self.written.append(TenantUpdate(name, nominal_millislices=nominal))
        known = self.policy.get(name, Tenant(name, "", Quota(nominal)))
        quota = replace(known.quota, nominal_millislices=nominal)
        self.policy[name] = replace(known, quota=quota)
        self.ledger.loans.replace(self.ledger.loans.outstanding(), "as the daemon's next turn does")

    def old_program_inserts(self, name: str, nominal: int) -> None:
        with psycopg.connect(self.database) as connection:
            connection.execute(
                "INSERT INTO slicewise.quota_changes"
                " (cluster, tenant, nominal_millislices, author, reason)"
                " VALUES (%s, %s, %s, 'olga', 'with an old program')",
                (self.cluster, name, nominal),
            )

    @contextmanager
    def crashing_before(self, statement: int) -> Iterator[None]:
        """Break the ledger's connection before its Nth statement."""
        number = count(1)

        def cut(connection: Any, *_: Any) -> None:
            if next(number) == statement:
                connection.connection.driver_connection.close()

        event.listen(self.ledger._database.engine, "before_cursor_execute", cut)
        try:
            yield
        finally:
            event.remove(self.ledger._database.engine, "before_cursor_execute", cut)

    @invariant()
    def the_database_folds_as_memory_does(self) -> None:
        assert self.ledger.tenants.policy() == self.policy

    @invariant()
    def loans_are_within_limits(self) -> None:
        assert broken_rules(self.policy, self.ledger.loans.outstanding()) == []

    @invariant()
    def limits_are_together_what_nominals_are(self) -> None:
        found = standings(self.policy, self.ledger.loans.outstanding())
        nominal = effective_nominal(self.policy)
        top = [name for name, tenant in self.policy.items() if not tenant.parent]
        limits = sum(found[name].limit_millislices for name in top)
        assert limits == sum(nominal[name] for name in top)

    def history_is_complete(self, name: str) -> None:
        mine = tuple(update for update in reversed(self.written) if update.tenant == name)
        assert tuple(change.update for change in self.ledger.tenants.history(name)) == mine

    def loans_follow_from_their_history(self, name: str) -> None:
        newest: dict[tuple[str, str], int] = {}
        for change in reversed(self.ledger.loans.history(name, MOST_CHANGES)):
            newest[change.loan.lender, change.loan.borrower] = change.loan.amount_millislices
        now = {
            (one.lender, one.borrower): one.amount_millislices
            for one in self.ledger.loans.outstanding()
        }
        assert {pair: amount for pair, amount in newest.items() if amount} == {
            pair: amount for pair, amount in now.items() if name in pair
        }

    def how_many_loan_changes(self) -> int:
        return sum(len(self.ledger.loans.history(name, MOST_CHANGES)) for name in NAMES)
