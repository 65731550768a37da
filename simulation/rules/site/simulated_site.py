"""A simulated site: the history's jobs on the model of Slurm, under one plan.

Nothing happens between events: the site goes from submission to submission, and to the rounds of
quotas between them. A round is planned soon after something has changed that it could see, while a
job waits that Slurm has not started by itself: without one, loans change nothing until the next job
comes. Whether it is made at once or by the regular one is the daemon's own decision. It also comes
when a recall's grace is over, or a window of the calendar begins or ends, and while services' slots
wait for a lender for which their replicas went. Services make their turns between all that: those
of the launcher, and what the daemon makes of them. Nodes fail, come back and are cut again when it
is time.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from slicewise.cluster.language.jobs import WAITING, JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.site.admission import Refused
from slicewise.simulation.rules.site.deciding import SlicewiseOnModel
from slicewise.simulation.rules.site.failures import FailingNodes, Outage
from slicewise.simulation.rules.site.looks import Looks
from slicewise.simulation.rules.site.node_capacity import node_millislices
from slicewise.simulation.rules.site.past_requests import Replay, with_time_for
from slicewise.simulation.rules.site.past_use import EarlierRun, used_billing_s
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan
from slicewise.simulation.rules.site.records import (
    BrokenRun,
    DownNode,
    ReplayedJob,
    ReplayedRun,
    SiteRecord,
    replayed,
    replica,
)
from slicewise.simulation.rules.site.repartitions import SiteRepartitions
from slicewise.simulation.rules.site.window_times import period_times_s, window_times_s
from slicewise.simulation.rules.slurm_model.job_records import NODE_FAIL
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.simulation.rules.slurm_model.priority import next_period_s
from slicewise.slurm_plugin.rules.common.costs import job_cost, run_cost
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.services.pace import PACE

Progress = Callable[[float], None]
"""Is told which share of the simulated time has passed, 0 to 1."""

_TOLD = 200
"""How often progress is told in all."""
_SETTLE_S = 1.0
"""Seconds that Slurm needs to start what it can, beside the distance of its scheduler's runs."""
_SAME_S = 300.0
"""Seconds after which a round comes although jobs are as they were: turns and standstills go by the
clock."""
_ASK_S = 900.0
"""Seconds between two looks at whether all jobs that count have started, after the end."""


@dataclass(frozen=True)
class SiteTimes:
    """From when to when a site is simulated, in Unix seconds.

    Attributes:
        begin_s: where the simulation begins.
        end_s: jobs that come before this count.
        last_s: where it stops at the latest; earlier once all jobs that count have started.
    """

    begin_s: float
    end_s: float
    last_s: float


@dataclass
class _Followed:
    """A job that was submitted: what it is, and its runs so far."""

    job: Replay
    runs: list[ReplayedRun] = field(default_factory=list)
    given_up_s: float | None = None


class Site:
    """One site under one plan."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: SitePlan,
        costs: Mapping[str, Millislices],
        jobs: Sequence[Replay],
        times: SiteTimes,
        *,
        earlier: Sequence[EarlierRun] = (),
        down: Sequence[Outage] | None = None,
    ) -> None:
        """``earlier``: what ran before the beginning; ``down``: outages of nodes, None for none."""
        self._plan, self._jobs, self._times, self._costs = plan, jobs, times, costs
        self._model = SlurmModel(with_time_for(cluster, jobs), start_s=times.begin_s, costs=costs)
        _set_limits(self._model, plan)
        half_life_s = cluster.scheduling.weights.half_life_s
        self._model.begin_with(used_billing_s(earlier, times.begin_s, half_life_s))
        self._slicewise: SlicewiseOnModel | None = None
        self._windows_s: Sequence[int] = ()
        self._has_budgets = False
        if isinstance(plan, SlicewisePlan):
            self._slicewise = SlicewiseOnModel(plan, cluster, self._model, earlier)
            zone = plan.settings.ledger.time_zone
            span = times.begin_s, times.last_s, zone
            periods_s = period_times_s(plan.tenants, *span)
            self._windows_s = sorted((*window_times_s(plan.windows, *span), *periods_s))
            self._has_budgets = any(tenant.budget for tenant in plan.tenants.values())
        self._down = down
        self._costs_of = {node.name: node_millislices(node, costs) for node in cluster.nodes}
        self._failing = FailingNodes(self._model, down or ())
        self._broken: list[BrokenRun] = []
        self._repartitions = self._repartitions_of(cluster)
        self._next = 0
        self._followed: dict[int, _Followed] = {}
        self._replicas: list[ReplayedJob] = []
        self._refused: list[tuple[int, str]] = []
        self._give_up: list[tuple[float, int]] = []
        of = cluster.scheduling
        self._settle_s = _SETTLE_S + max(of.interval_s, of.batch_delay_s)
        # When something changed first since the last round, and since the last look; inf if nothing
        # did.
        self._changed_s = self._unseen_s = -inf
        self._looks = Looks(*_paces(plan))
        self._round_s = -inf
        # The jobs after the last round, and those of them that had not ended.
        self._shown: Sequence[JobView] = ()
        self._seen: Sequence[JobView] = ()
        self._waits = False
        self._told = 0

    @property
    def shares(self) -> Mapping[str, float]:
        """The share term of each tenant's priority, as of the last round; {} by Slurm alone."""
        return {} if self._slicewise is None else self._slicewise.shares

    def run(self, progress: Progress | None = None) -> SiteRecord:
        """Simulate all of it."""
        times, model = self._times, self._model
        ask_s = times.end_s
        # Admission knows no quota before the first round.
        self._round_if_due()
        while model.now_s < times.last_s:
            at_s = min(self._due_s(), times.last_s, ask_s)
            own_s = model.next_s()
            if own_s is not None and own_s <= at_s:
                self._note_change(own_s)
            model.advance(at_s)
            self._change_nodes()
            self._submit_due()
            self._cancel_due()
            if self._slicewise is not None:
                self._slicewise.services.advance(at_s)
            self._look_if_due()
            self._round_if_due()
            if at_s >= ask_s:
                self._collect()
                if not self._counts_on():
                    break
                ask_s = at_s + _ASK_S
            self._tell(progress)
        self._collect()
        if progress is not None:
            progress(1.0)
        return self._record()

    def _due_s(self) -> float:
        """When something happens next that does not happen in Slurm by itself."""
        due = [self._look_due_s(), self._round_due_s(), self._failing.next_s()]
        if self._repartitions is not None:
            due.append(self._repartitions.next_s())
        if self._next < len(self._jobs):
            due.append(self._jobs[self._next].at_s)
        if self._give_up:
            due.append(self._give_up[0][0])
        if self._slicewise is not None:
            turn_s = self._slicewise.services.next_s()
            due.append(inf if turn_s is None else turn_s)
        return max(self._model.now_s, min(due))

    def _note_change(self, at_s: float) -> None:
        self._changed_s = min(self._changed_s, at_s)
        self._unseen_s = min(self._unseen_s, at_s)

    def _since_s(self, changed_s: float) -> float:
        """When something changed first, or will in Slurm by itself."""
        own_s = self._model.next_s() if changed_s == inf else None
        return changed_s if own_s is None else own_s

    def _look_due_s(self) -> float:
        if self._slicewise is None:
            return inf
        return self._looks.due_s(self._since_s(self._unseen_s))

    def _look_if_due(self) -> None:
        """Let jobs move between QOS, as the daemon does at each look."""
        if self._slicewise is None or self._look_due_s() > self._model.now_s:
            return
        self._unseen_s = inf
        self._looks.looked_s = self._model.now_s
        if self._slicewise.look():
            self._note_change(self._model.now_s)

    def _round_due_s(self) -> float:
        if self._slicewise is None:
            return inf
        changed_s = self._since_s(self._changed_s)
        own_s = min(self._dated_s(), self._minutes_s())
        return max(min(changed_s + self._settle_s, own_s), self._next_round_s)

    @property
    def _next_round_s(self) -> float:
        return self._round_s + self._settle_s

    @property
    def _takes_back(self) -> bool:
        """Whether a lender takes something back for slots, or replicas go for one: then the daemon
        plans at each turn.
        """
        return self._slicewise is not None and self._slicewise.takes_back

    def _dated_s(self) -> float:
        """When a round is due whatever has changed: for a recall, a window or a budget's period,
        for a job that is passed over, or since slots wait for a lender; inf for none.
        """
        if self._takes_back:
            return self._round_s + self._settle_s
        nth = bisect_right(self._windows_s, self._round_s)
        window_s = self._windows_s[nth] if nth < len(self._windows_s) else inf
        if (slicewise := self._slicewise) is None:
            return window_s
        recall_s = slicewise.recall_due_s
        own_s = min(window_s, slicewise.passed_over_due_s, slicewise.regular_due_s)
        return own_s if recall_s is None else min(own_s, recall_s)

    def _minutes_s(self) -> float:
        """Right before Slurm counts running minutes anew, while a job may wait for a budget."""
        is_bound = self._has_budgets and self._waits
        return next_period_s(self._round_s + 1.0) - 1.0 if is_bound else inf

    def _repartitions_of(self, cluster: SimulatedCluster) -> SiteRepartitions | None:
        """The site's repartitions; None where GPUs are never cut again."""
        plan, slicewise = self._plan, self._slicewise
        if not isinstance(plan, SlicewisePlan) or slicewise is None:
            return None
        if all(node.boards is None for node in cluster.nodes):
            return None
        leave = slicewise.services.leave
        return SiteRepartitions(cluster, plan.settings, self._model, slicewise.policy_at, leave)

    def _change_nodes(self) -> None:
        """Let nodes fail and come back, and GPUs be cut again."""
        is_changed = self._failing.advance()
        if self._repartitions is not None:
            self._collect()
            is_changed = self._repartitions.advance() or is_changed
        if is_changed:
            self._note_change(self._model.now_s)

    def _submit_due(self) -> None:
        now_s, jobs, first = self._model.now_s, self._jobs, self._next
        while self._next < len(jobs) and jobs[self._next].at_s <= now_s:
            self._next += 1
        due, slicewise = jobs[first : self._next], self._slicewise
        is_sure = slicewise is None or not self._has_budgets or slicewise.budgets_let(due)
        if slicewise is not None and not is_sure and self._next_round_s <= now_s:
            # The daemon's limits shrink as budgets are used up, though nobody waits.
            self._round()
            slicewise.budgets_let(due)
        for job in due:
            self._submit(job)

    def _submit(self, job: Replay) -> None:
        self._note_change(self._model.now_s)
        self._looks.heard_s = self._model.now_s
        request = job.request
        if self._slicewise is not None:
            admitted = self._slicewise.admit(request)
            if isinstance(admitted, Refused):
                self._refused.append((job.number, admitted.code))
                return
            request = admitted
        job_id = self._model.submit(request)
        if self._slicewise is not None:
            self._slicewise.note(job_id, request)
        self._followed[job_id] = _Followed(job)
        if job.gives_up_s is not None:
            heappush(self._give_up, (job.gives_up_s, job_id))

    def _cancel_due(self) -> None:
        """Cancel the jobs whose users gave up waiting, if they still wait."""
        due = []
        while self._give_up and self._give_up[0][0] <= self._model.now_s:
            due.append(heappop(self._give_up)[1])
        if not due:
            return
        waiting = {job.job_id for job in self._model.jobs if job.state in WAITING}
        for job_id in due:
            if job_id in waiting:
                self._model.cancel(job_id)
                self._followed[job_id].given_up_s = self._model.now_s
                self._note_change(self._model.now_s)

    def _round_if_due(self) -> None:
        now_s = self._model.now_s
        if self._slicewise is None or self._round_due_s() > now_s:
            return
        self._collect()
        self._changed_s = inf
        jobs = self._model.jobs
        is_new = jobs is not self._shown and _going_on(jobs) != self._seen
        is_new = is_new or now_s >= self._round_s + _SAME_S
        is_new = is_new or self._minutes_s() <= now_s
        self._waits = any(waits_of(job).could_start for job in jobs if job.state in WAITING)
        is_wanted = is_new and self._waits
        if is_wanted or self._dated_s() <= now_s or self._round_s == -inf:
            self._round()

    def _round(self) -> None:
        if self._slicewise is None:
            return
        self._collect()
        self._slicewise.round()
        self._round_s, self._shown = self._model.now_s, self._model.jobs
        self._seen = _going_on(self._shown)

    def _collect(self) -> None:
        """Take the runs that have ended."""
        for run in self._model.take_ended():
            if self._slicewise is not None:
                self._slicewise.ended(run)
            if self._repartitions is not None:
                self._repartitions.ended(run)
            if run.start_s is None:
                continue
            if run.state == NODE_FAIL:
                lost = run_cost(run.gpus, self._costs) * (run.end_s - run.start_s)
                self._broken.append(BrokenRun(run.end_s, lost))
            replayed = ReplayedRun(run.start_s, run.end_s, is_borrowed(run.qos))
            followed = self._followed.get(run.job_id)
            if followed is not None:
                followed.runs.append(replayed)
            else:
                self._replicas.append(
                    replica(run.account, run_cost(run.gpus, self._costs), replayed)
                )

    def _counts_on(self) -> bool:
        """Whether a job that counts still waits for its first start."""
        end_s = self._times.end_s
        for job in self._model.jobs:
            followed = self._followed.get(job.job_id)
            if followed is not None and job.state in WAITING and not followed.runs:
                is_one = followed.job.number >= 0 and followed.job.at_s < end_s
                if is_one and followed.given_up_s is None:
                    return True
        return False

    def _tell(self, progress: Progress | None) -> None:
        if progress is None:
            return
        begin_s, last_s = self._times.begin_s, self._times.last_s
        done = min(1.0, (self._model.now_s - begin_s) / max(1.0, last_s - begin_s))
        if (step := int(done * _TOLD)) > self._told:
            self._told = step
            progress(done)

    def _record(self) -> SiteRecord:
        running: dict[int, ReplayedRun] = {}
        waiting: set[int] = set()
        replicas = list(self._replicas)
        for job in self._model.jobs:
            if job.state in WAITING:
                waiting.add(job.job_id)
            elif job.state is JobState.RUNNING and job.start_s is not None:
                run = ReplayedRun(job.start_s, None, is_borrowed(job.qos))
                running[job.job_id] = run
                if job.job_id not in self._followed:
                    replicas.append(replica(job.account, job_cost(job, self._costs), run))
        slicewise = self._slicewise
        return SiteRecord(
            begin_s=self._times.begin_s,
            stopped_s=self._model.now_s,
            jobs=tuple(
                replayed(
                    followed.job,
                    followed.runs,
                    running.get(job_id),
                    followed.given_up_s,
                    waits=job_id in waiting,
                )
                for job_id, followed in self._followed.items()
            ),
            refused=tuple(self._refused),
            rounds=0 if slicewise is None else slicewise.rounds,
            services=() if slicewise is None else slicewise.services.records(self._model.now_s),
            replicas=tuple(replicas),
            repartitions=None if self._repartitions is None else self._repartitions.found,
            down=self._been_down(),
            broken=tuple(self._broken),
        )

    def _been_down(self) -> tuple[DownNode, ...] | None:
        now_s = self._model.now_s
        if self._down is None:
            return None
        return tuple(
            DownNode(outage.down_s, min(outage.up_s, now_s), self._costs_of[outage.node])
            for outage in self._down
            if outage.down_s <= now_s
        )


def _set_limits(model: SlurmModel, plan: SitePlan) -> None:
    for name, qos in plan.qos.items():
        model.set_qos(name, qos)
    for name, account in plan.accounts.items():
        model.set_account(name, account)


def _going_on(jobs: Sequence[JobView]) -> Sequence[JobView]:
    """The jobs that have not ended: a round asks nothing of others, which Slurm forgets later."""
    return [job for job in jobs if job.state is not JobState.ENDED]


def _paces(plan: SitePlan) -> tuple[float, float]:
    if not isinstance(plan, SlicewisePlan):
        return inf, inf
    return PACE.moving_s, PACE.rest_s
