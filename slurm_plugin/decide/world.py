"""What quotas are decided by: the ledger, Slurm and the settings, at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cluster.jobs import JobView, NodeView
from cluster.mig_profiles import WholeBoard
from cluster.units import Millislices
from cluster.wire import ServiceView
from slurm_plugin.decide.books import Books
from slurm_plugin.decide.budget_parts import as_budgets_let
from slurm_plugin.decide.ceilings import Ceiling, QosUse, by_use, ceilings
from slurm_plugin.decide.demand import capacity, qos_use
from slurm_plugin.decide.limits import Allowed
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.services import used_by_tenant
from slurm_plugin.decide.tenants import own_part


@dataclass(frozen=True)
class Seen:
    """What was seen of Slurm. Half a look decides nothing.

    Attributes:
        told: job ids of replicas that have been told to end, whether ``services`` show it or not.
        lately: millislices that each tenant's jobs have held on average; empty if that does not
            count.
        stuck: job ids of those that had quota and GPUs, and did not start (``standstill``).
    """

    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    told: frozenset[int] = frozenset()
    lately: Mapping[str, int] = field(default_factory=dict, hash=False)
    stuck: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Rules:
    """The site's settings that quotas are decided by.

    Attributes:
        costs: millislices of an instance by GRES type; whole_boards: of what it is a part;
            models: its GPU model.
        grace_s, term_s, turn_s: [lending].
    """

    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    whole_boards: Mapping[str, WholeBoard] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    grace_s: int
    term_s: int
    turn_s: int


@dataclass(frozen=True)
class World:
    """Everything that quotas are decided by."""

    books: Books
    seen: Seen
    rules: Rules

    @property
    def policy(self) -> Policy:
        """In force at the moment of the books."""
        return self.books.policy

    @cached_property
    def jobs(self) -> tuple[JobView, ...]:
        """All that was seen, those of managed partitions as their budgets let them start."""
        rules, books = self.rules, self.books
        return as_budgets_let(
            self.policy,
            books.run_minutes,
            self.seen.jobs,
            rules.partitions,
            costs=rules.costs,
            now_s=books.when.at_s,
        )

    @cached_property
    def held(self) -> Mapping[str, int]:
        """Millislices that each account's jobs hold."""
        return used_by_tenant(self.jobs, self.rules.partitions, self.rules.costs)

    @cached_property
    def use(self) -> QosUse:
        """What jobs do with the limits of tenants' QOS."""
        rules = self.rules
        return qos_use(own_part(self.policy), self.seen.jobs, rules.partitions, rules.costs)

    @cached_property
    def ceilings(self) -> Mapping[str, Ceiling]:
        """What each tenant may hold by the loans and recalls of the books."""
        books = self.books
        return ceilings(self.policy, books.loans, self.capacity_millislices, books.recalls)

    def allowed(self, use: QosUse | None = None) -> Allowed:
        """What is to be in Slurm, for what is in use now or was when somebody looked."""
        rules = self.rules
        return Allowed(
            policy=self.policy,
            ceilings=by_use(self.ceilings, use or self.use),
            run_minutes=self.books.run_minutes,
            costs=rules.costs,
            models=rules.models,
            term_s=rules.term_s,
            capacity_millislices=self.capacity_millislices,
        )

    @cached_property
    def capacity_millislices(self) -> int | None:
        """None without any GPU: something is wrong then, and nothing is lent anew."""
        rules = self.rules
        whole = capacity(self.seen.nodes, rules.partitions, rules.costs, rules.whole_boards)
        return whole or None
