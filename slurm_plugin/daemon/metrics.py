"""Serves the daemon's metrics to Prometheus at ``daemon.metrics`` = HOST:PORT."""

from collections import Counter as Count
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from slicewise.cluster.language.jobs import JobState, JobTag
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.language.periods import LENGTH_S
from slicewise.cluster.language.slurm.asked import ASKED
from slicewise.cluster.runtime.prometheus import family, served, single
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm.unread_log import UnreadLog
from slicewise.slurm_plugin.admission_server.pipe import Decided
from slicewise.slurm_plugin.admission_server.worker_process import AdmissionProcess
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS
from slicewise.slurm_plugin.rules.quota.demand import late_before_s, late_jobs
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import has_gpus, node_capacity
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)


class Metrics:
    """Counts events; all other values are read when Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        decision, turn = (
            METRICS["slicewise_admission_duration_seconds"],
            METRICS["slicewise_loop_duration_seconds"],
        )
        failures = METRICS["slicewise_loop_failures_total"]
        self._decision_s = Histogram(
            decision.name, decision.text, buckets=_SECONDS, registry=self.registry
        )
        self._turn_s = Summary(turn.name, turn.text, turn.labels, registry=self.registry)
        self._failures = Counter(
            failures.name, failures.text, failures.labels, registry=self.registry
        )

    def begins(self, loop: str) -> None:
        """Show a count of 0 for a loop that begins: a rate needs a first value."""
        self._turn_s.labels(loop)
        self._failures.labels(loop)

    def decided(self, decided: Decided) -> None:
        """Count an answered submission."""
        self._decision_s.observe(decided.took_s)

    def turned(self, loop: str, took_s: float, *, failed: bool) -> None:
        """Count a finished turn of one of the daemon's loops, and its seconds."""
        self._turn_s.labels(loop).observe(took_s)
        self._failures.labels(loop).inc(int(failed))

    def watch(
        self,
        settings: Settings,
        admission: AdmissionProcess,
        cluster_state: ClusterState,
        leader: Leader,
        unread: UnreadLog,
    ) -> None:
        """Export the state of these parts, too."""
        self.registry.register(_State(settings, admission, cluster_state, leader, unread))

    def served(self, address: str) -> AbstractContextManager[None]:
        """Answer Prometheus at HOST:PORT while entered; raises what ``prometheus.served`` does."""
        return served(self.registry, address, "daemon.metrics")


class _State(Collector):
    def __init__(
        self,
        settings: Settings,
        admission: AdmissionProcess,
        cluster_state: ClusterState,
        leader: Leader,
        unread: UnreadLog,
    ) -> None:
        self._unread = unread
        self._settings = settings
        self._partitions = frozenset(settings.cluster.partitions)
        self._admission = admission
        self._cluster_state = cluster_state
        self._leader = leader

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_admission()
        yield from self._of_tenants()
        yield from self._of_budgets()
        yield from self._of_slurm()
        yield from self._of_jobs()
        yield from self._of_energy()
        state = self._cluster_state
        yield single(METRICS["slicewise_uninstalled"], state.is_uninstalled)
        yield single(METRICS["slicewise_is_leader"], self._leader.leads())
        yield single(METRICS["slicewise_slurm_view_complete"], state.view.complete)
        age_s = wall_s() - state.view.observed_s
        yield single(METRICS["slicewise_slurm_view_age_seconds"], age_s)
        yield single(METRICS["slicewise_clock_step_seconds"], state.clock.stepped_s)

    def _of_admission(self) -> Iterator[Metric]:
        decisions = tuple(self._admission.decisions.items())
        yield family(METRICS["slicewise_admission_decisions_total"], decisions)
        yield family(
            METRICS["slicewise_admission_worker_restarts_total"],
            (((cause,), count) for cause, count in self._admission.restarts.items()),
        )
        yield single(
            METRICS["slicewise_admission_unlogged_decisions_total"], self._admission.dropped
        )
        newest, spec = self._admission.newest, METRICS["slicewise_lua_module_info"]
        module = InfoMetricFamily(spec.name.removesuffix("_info"), spec.text)
        if newest is not None:
            said = (newest.module, newest.module_mode)
            module.add_metric([], dict(zip(spec.labels, said, strict=True)))
        yield module

    def _of_slurm(self) -> Iterator[Metric]:
        unread = tuple(self._unread.counts.items())
        yield family(
            METRICS["slicewise_slurm_unreadable_values_total"],
            [((field,), count) for field, count in unread],
        )
        by_hand = self._cluster_state.quotas.changed_by_hand
        yield single(METRICS["slicewise_limits_changed_by_hand_total"], by_hand)
        requeued = self._cluster_state.requeues.count
        yield single(METRICS["slicewise_requeued_runs_total"], requeued)
        asked = tuple(ASKED.reads.items())
        yield family(
            METRICS["slicewise_slurm_requests_total"],
            [((question,), count) for question, count in asked],
        )

    def _of_jobs(self) -> Iterator[Metric]:
        state = self._cluster_state
        pending = [job for job in state.jobs if job.state is JobState.PENDING]
        managed = sum(JobTag.find(job.admin_comment) is not None for job in pending)
        yield single(METRICS["slicewise_pending_jobs"], managed)
        yield single(METRICS["slicewise_unadmitted_jobs"], state.unadmitted.count)
        costs, policy = self._settings.costs, state.quotas.policy
        nodes = (node for node in state.nodes if has_gpus(node, self._partitions))
        boards = self._settings.whole_boards
        whole = sum(node_capacity(node, costs, boards) for node in nodes)
        yield single(METRICS["slicewise_capacity_millislices"], whole)
        over = state.quotas.overcommitment
        above = over.above_millislices if over is not None else 0
        yield single(METRICS["slicewise_overcommitted_millislices"], above)
        yield single(METRICS["slicewise_barred_jobs"], len(state.barred.jobs))
        yield single(METRICS["slicewise_barred_trials_total"], state.barred.damped)
        before_s = late_before_s(state.slurm_s, self._settings.lending.grace_s)
        by_holder = jobs_by_holder(state.jobs, self._partitions, costs, self._settings.models)
        late = late_jobs(by_holder, policy, before_s)
        counts = Count(job.tenant for job in late)
        yield _by_tenant("late_jobs", {name: counts[name] for name in policy})

    def _of_energy(self) -> Iterator[Metric]:
        power = self._cluster_state.node_power
        watts = power.watts().items()
        yield family(
            METRICS["slicewise_gpu_power_watts"], [((node,), drawn_w) for node, drawn_w in watts]
        )
        taken_mj, policy = Count[str](), self._cluster_state.quotas.policy
        for tenant, energy_mj in tuple(power.energy_mj.items()):
            taken_mj[tenant if tenant in policy else ""] += energy_mj
        yield family(
            METRICS["slicewise_gpu_energy_joules_total"],
            [((tenant,), energy_mj / 1000) for tenant, energy_mj in taken_mj.items()],
        )

    def _of_tenants(self) -> Iterator[Metric]:
        tenants, quotas = self._cluster_state.view.tenants, self._cluster_state.quotas
        nominal = {tenant.name: tenant.nominal_millislices for tenant in tenants}
        in_use = {tenant.name: tenant.in_use_millislices for tenant in tenants}
        own = {tenant.name: tenant.own_in_use_millislices for tenant in tenants}
        yield _by_tenant("nominal_millislices", nominal)
        yield _by_tenant("in_use_millislices", in_use)
        yield _by_tenant("own_in_use_millislices", own)
        limits = {name: standing.limit_millislices for name, standing in quotas.standings.items()}
        lent = {name: standing.lent_millislices for name, standing in quotas.standings.items()}
        borrowed = {
            name: standing.borrowed_millislices for name, standing in quotas.standings.items()
        }
        yield _by_tenant("limit_millislices", limits)
        yield _by_tenant("lent_millislices", lent)
        yield _by_tenant("borrowed_millislices", borrowed)
        yield _by_tenant("highest_limit_millislices", quotas.highest_limits)

    def _of_budgets(self) -> Iterator[Metric]:
        quotas = self._cluster_state.quotas
        # Only the daemon that books tokens knows what is left of them.
        left_tokens = quotas.left_tokens if self._leader.leads() else {}
        by_meter = (
            (SLICES.name, "budget", "millislice_seconds", quotas.left_millislice_s),
            (TOKENS.name, "token_budget", "tokens", left_tokens),
        )
        for meter, what, unit, left in by_meter:
            budgets = {
                name: budget
                for name, tenant in quotas.policy.items()
                if (budget := tenant.budget_on(meter)) is not None
            }
            amounts = {name: budget.amount for name, budget in budgets.items()}
            left_of = {name: amount for name, amount in left.items() if name in budgets}
            periods = {
                name: LENGTH_S[budget.period]
                for name, budget in budgets.items()
                if budget.period in LENGTH_S
            }
            yield _by_tenant(f"{what}_amount_{unit}", amounts)
            yield _by_tenant(f"{what}_left_{unit}", left_of)
            yield _by_tenant(f"{what}_period_seconds", periods)
        yield from self._of_month()
        money = self._cluster_state.money_budgets if self._leader.leads() else ()
        for name in ("amount_millionths", "left_millionths"):
            values = {status.tenant: getattr(status, name) for status in money}
            yield _by_tenant(f"money_budget_{name}", values)
        warn_at = {status.tenant: status.warn_at for status in money}
        yield _by_tenant("money_budget_warn_ratio", warn_at)
        ends_s = {status.tenant: status.ends_s for status in money}
        yield _by_tenant("money_budget_period_end_timestamp_seconds", ends_s)

    def _of_month(self) -> Iterator[Metric]:
        month = self._cluster_state.month if self._leader.leads() else None
        cost = {
            each.tenant: each.millionths
            for each in (month.tenants if month else ())
            if each.millionths is not None
        }
        yield _by_tenant("month_cost_millionths", cost)


def _by_tenant(what: str, values: Mapping[str, float]) -> Metric:
    spec = METRICS[f"slicewise_tenant_{what}"]
    return family(spec, [((name,), value) for name, value in values.items()])
