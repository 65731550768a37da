"""Rounds of quotas over time: a tree of tenants, whole jobs of several types, GPUs that are cut
anew, a clock that is set. Slurm starts what the limits of both QOS of each tenant let.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stand_ins.reclaim_world import COSTS, GRACE_S, MUCH, PARTITIONS, ROUND_S, Cluster, one

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.quota.tenants import (
    by_parent,
    changed,
    effective_nominal,
    guaranteed_quota,
)
from slicewise.slurm_plugin.rules.quota.types import Policy, TenantUpdate
from slicewise.slurm_plugin.rules.services.state import used_by_tenant

ONE, THREE, SEVEN = COSTS
PAD = "pad1"
BOARD = 7000
BOARDS = dict.fromkeys(COSTS, WholeBoard(7, Millislices(BOARD)))
LAYOUTS = (
    {ONE: 7},
    {THREE: 2, PAD: 5},
    {THREE: 1, ONE: 3, PAD: 3},
    {SEVEN: 1, PAD: 6},
)
"""How a GPU may be cut; each node has one."""
TENANTS = ("dept", "team", "crew", "lab", "lone")
PARENTS = {"team": "dept", "lab": "dept", "crew": "team"}
STEP = 500
"""Of quotas, in millislices."""
NOBODY_S = 10**9
"""A turn of so long never comes."""
SETTLED_ROUNDS = GRACE_S // ROUND_S + 6

AMOUNTS = st.integers(0, 20).map(lambda steps: Millislices(STEP * steps))
SHAPES = st.sampled_from(
    ((ONE, 1), (ONE, 1), (ONE, 2), (ONE, 4), (THREE, 1), (THREE, 2), (SEVEN, 1))
)


class Quotas(RuleBasedStateMachine):
    """Attributes:
    due_s: by the steady clock, since when each job has waited for what is its tenant's own.
    again_s: by that, when the other clock is where it was before it was last set back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.due_s: dict[int, int] = {}
        self.again_s = 0
        self.job_id = 0

    @initialize(
        cuts=st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3),
        shares=st.lists(st.integers(0, 4), min_size=len(TENANTS), max_size=len(TENANTS)),
        borrowers=st.sets(st.sampled_from(TENANTS), min_size=1, max_size=2),
        drains=st.booleans(),
        data=st.data(),
    )
    def begin(
        self,
        cuts: list[Mapping[str, int]],
        shares: list[int],
        borrowers: set[str],
        drains: bool,
        data: st.DataObject,
    ) -> None:
        """Most GPUs belong to a tenant; replicas, mostly of tenants without any, run on all."""
        nodes = {f"n{i}": dict(cut) for i, cut in enumerate(cuts)}
        self.cluster = Cluster({}, nodes, {}, whole_boards=BOARDS, turn_s=NOBODY_S, drains=drains)
        total = Counter(dict(zip(TENANTS, shares, strict=True)))
        total -= Counter({name: total[name] for name in borrowers})
        each = self.capacity // max(1, total.total()) // STEP * STEP
        for name, above in reversed(PARENTS.items()):
            total[above] += total[name]
        for name in TENANTS:
            self.set_quota(name, Millislices(total[name] * each), weight=1, at_top=False)
        who = st.sampled_from(sorted(borrowers))
        for kind, count in sum(map(Counter, nodes.values()), Counter[str]()).items():
            if kind != PAD:
                self.ask([data.draw(who) for _ in range(count)], (kind, 1), borrowed=True)
        for _ in range(2):
            self.round()

    @rule(
        name=st.sampled_from(TENANTS),
        nominal=AMOUNTS,
        weight=st.integers(1, 3),
        at_top=st.booleans(),
    )
    def set_quota(self, name: str, nominal: Millislices, weight: int, at_top: bool) -> None:
        """A new tenant, or another quota; what the ledger would refuse changes nothing."""
        before = self.cluster.policy
        above = "" if at_top else PARENTS.get(name, "")
        update = TenantUpdate(
            name,
            parent=None if name in before else above if above in before else "",
            nominal_millislices=nominal,
            borrowing_limit_millislices=MUCH,
            lending_limit_millislices=MUCH,
            weight=weight,
        )
        with suppress(InvalidInputError):
            after = changed(before, update)
            if at_the_top(after) <= self.capacity:
                self.cluster.policy = after

    @precondition(lambda self: self.cluster.policy)
    @rule(
        data=st.data(),
        shape=SHAPES,
        borrowed=st.booleans(),
        batch=st.booleans(),
    )
    def submit(
        self, data: st.DataObject, shape: tuple[str, int], borrowed: bool, batch: bool
    ) -> None:
        account = st.sampled_from(sorted(self.cluster.policy))
        accounts = data.draw(st.lists(account, min_size=1, max_size=4))
        self.ask(accounts, shape, borrowed=borrowed, batch=borrowed and batch)

    @precondition(lambda self: self.cluster.loans)
    @rule(data=st.data(), count=st.integers(1, 3), rounds=st.integers(1, 6))
    def lender_asks(self, data: st.DataObject, count: int, rounds: int) -> None:
        """For what it has lent, on instances that there are."""
        lenders = sorted({loan.lender for loan in self.cluster.loans})
        kinds = sorted({kind for there in self.cluster.nodes.values() for kind in there} - {PAD})
        account, kind = data.draw(st.sampled_from(lenders)), data.draw(st.sampled_from(kinds))
        self.ask([account] * count, (kind, 1), borrowed=False)
        self.rounds(rounds)

    def ask(
        self, accounts: list[str], shape: tuple[str, int], *, borrowed: bool, batch: bool = False
    ) -> None:
        now_s = self.cluster.now_s
        for account in accounts:
            self.job_id += 1
            job = one(self.job_id, account, *shape, borrowed=borrowed)
            self.cluster.jobs[self.job_id] = replace(job, submit_s=now_s, eligible_s=now_s)
            self.cluster.batch |= {self.job_id} if batch else set()

    @precondition(lambda self: self.cluster.jobs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        del self.cluster.jobs[data.draw(st.sampled_from(sorted(self.cluster.jobs)))]
        self.cluster.going &= self.cluster.jobs.keys()

    @rule(data=st.data(), cut=st.sampled_from(LAYOUTS))
    def cut_anew(self, data: st.DataObject, cut: Mapping[str, int]) -> None:
        """Where nothing runs."""
        busy = {job.nodes[0] for job in self.running()}
        if free := sorted(self.cluster.nodes.keys() - busy):
            node = data.draw(st.sampled_from(free))
            self.cluster.nodes = {**self.cluster.nodes, node: dict(cut)}

    @rule(step_s=st.sampled_from((-3600, -20, 20, 3600)))
    def set_clock(self, step_s: int) -> None:
        """Back, and a recall has its grace once more: as a job's that comes when the clock says
        again what it said when the job came.
        """
        self.cluster.now_s += step_s
        if step_s < 0:
            self.due_s, self.again_s = {}, self.cluster.steady_s + min(-step_s, GRACE_S)

    @rule(drains=st.booleans())
    def launcher_comes_or_goes(self, drains: bool) -> None:
        self.cluster.drains = drains

    @rule(count=st.integers(1, 5))
    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def round(self) -> None:
        at_s = self.cluster.steady_s
        since_s = max(at_s, self.again_s)
        self.due_s = {job.job_id: self.due_s.get(job.job_id, since_s) for job in self.due()}
        self.cluster.round()
        late = {
            job_id: at_s - since_s
            for job_id, since_s in self.due_s.items()
            if self.cluster.jobs[job_id].state is JobState.PENDING and at_s - since_s >= GRACE_S
        }
        assert late == {}

    @rule()
    def rest(self) -> None:
        """Once nothing has changed for some rounds, nothing idle could start anything, and nobody
        has on loan what starts nothing.
        """
        for _ in range(SETTLED_ROUNDS):
            self.round()
        assert self.unusable() == {}
        assert {job.job_id: dict(job.gpus) for job in self.could_start()} == {}

    @invariant()
    def no_more_is_allowed_than_there_is(self) -> None:
        assert sum(self.cluster.limits().values()) <= self.capacity

    @property
    def capacity(self) -> int:
        """However GPUs are cut."""
        return BOARD * len(self.cluster.nodes)

    def running(self) -> list[JobView]:
        return [job for job in self.cluster.jobs.values() if job.state is JobState.RUNNING]

    def waiting(self, *, borrowed: bool) -> list[JobView]:
        """As Slurm would start them."""
        jobs = self.cluster.jobs.values()
        found = [job for job in jobs if job.state is JobState.PENDING]
        found = [job for job in found if is_borrowed(job.qos) == borrowed]
        return sorted(found, key=lambda job: -job.priority)

    def held(self) -> Mapping[str, int]:
        return used_by_tenant(self.running(), PARTITIONS, COSTS)

    def due(self) -> Iterator[JobView]:
        """Those that wait within their tenants' guaranteed quotas, and for which there are
        instances that no guaranteed job holds, nor a more important one may take.
        """
        own, held = guaranteed_quota(self.cluster.policy), self.held()
        left, asked, before = self.left(borrowed=True), Counter(held), Counter[str]()
        for job in self.waiting(borrowed=False):
            cost = run_cost(job.gpus, COSTS)
            asked[job.account] += cost
            if asked[job.account] <= own[job.account] and has_room(job, left, before):
                yield job
            if held.get(job.account, 0) + cost <= own[job.account]:
                before.update(job.gpus)

    def left(self, *, borrowed: bool) -> Mapping[str, Counter[str]]:
        """Instances that no job holds, or only jobs on borrowed quota."""
        left = {node: Counter(there) for node, there in self.cluster.nodes.items()}
        for job in self.running():
            if not (borrowed and is_borrowed(job.qos)):
                left[job.nodes[0]].subtract(job.gpus)
        return left

    def unusable(self) -> Mapping[str, int]:
        """What is lent to tenants beyond what their jobs hold, and is too little for any that
        waits.
        """
        own, used, lent = guaranteed_quota(self.cluster.policy), self.used(), Counter[str]()
        for loan in self.cluster.loans:
            lent[loan.borrower] += loan.amount_millislices
        room = {name: own[name] + amount - used[name] for name, amount in lent.items()}
        waits = {(job.account, run_cost(job.gpus, COSTS)) for job in self.waiting(borrowed=True)}
        return {
            name: left
            for name, left in room.items()
            if left > 0 and not any(cost <= left for one, cost in waits if one == name)
        }

    def could_start(self) -> Iterator[JobView]:
        """On free instances for which no guaranteed job waits, and on quota: of its tenant's own
        part what is left, and of others what is idle there and starts none of their own jobs.
        """
        own, used, wanted = guaranteed_quota(self.cluster.policy), self.used(), Counter[str]()
        for job in self.waiting(borrowed=False):
            wanted.update(job.gpus)
        lent = sum(max(0, used[name] - own[name]) for name in own)
        idle = {name: max(0, own[name] - used[name]) for name in own}
        for job in self.waiting(borrowed=True):
            if (cost := run_cost(job.gpus, COSTS)) <= idle[job.account]:
                idle[job.account] -= cost
        for job in self.waiting(borrowed=True):
            name, cost = job.account, run_cost(job.gpus, COSTS)
            room = max(0, own[name] - used[name]) - idle[name] + sum(idle.values()) - lent
            is_there = has_room(job, self.left(borrowed=False), wanted)
            if is_there and cost <= room and not self.cluster.is_kept(name):
                yield job

    def used(self) -> Mapping[str, int]:
        """What each tenant's jobs hold; and what those need that wait for its guaranteed quota and
        fit.
        """
        own, guaranteed, borrowed = (
            guaranteed_quota(self.cluster.policy),
            Counter[str](),
            Counter[str](),
        )
        for job in self.running():
            of = borrowed if is_borrowed(job.qos) else guaranteed
            of[job.account] += run_cost(job.gpus, COSTS)
        for job in self.waiting(borrowed=False):
            if (more := guaranteed[job.account] + run_cost(job.gpus, COSTS)) <= own[job.account]:
                guaranteed[job.account] = more
        return {name: min(own[name], guaranteed[name]) + borrowed[name] for name in own}


def has_room(job: JobView, left: Mapping[str, Counter[str]], others: Mapping[str, int]) -> bool:
    """Whether some node has enough for it, wherever the others start."""
    together = sum(left.values(), Counter[str]())
    return any(
        all(
            together[kind] - others.get(kind, 0) >= count
            if count == 1
            else there[kind] - others.get(kind, 0) >= count
            for kind, count in job.gpus.items()
        )
        for there in left.values()
    )


def at_the_top(policy: Policy) -> int:
    nominal = effective_nominal(policy)
    return sum(nominal[name] for name in by_parent(policy).get("", ()))


TestQuotaRounds = Quotas.TestCase
TestQuotaRounds.settings = settings(max_examples=examples(25, nightly=2000), stateful_step_count=25)
