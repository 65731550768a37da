"""Serves the daemon's metrics to Prometheus at ``daemon.metrics`` = HOST:PORT."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cluster.language.jobs import JobState, JobTag
from cluster.runtime.leadership import Leader
from cluster.runtime.prometheus import gauge, served
from cluster.slurm.asked import ASKED
from cluster.slurm.unread import UnreadLog
from slurm_plugin.admission_server.pipe import Decided
from slurm_plugin.admission_server.process import AdmissionProcess
from slurm_plugin.state.controller import ClusterState

_SUBTREE = "the tenant and the tenants below it"
_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)


class Metrics:
    """Counts events; all other values are read when Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._decision_s = Histogram(
            "slicewise_decision_seconds",
            "Time from a question's arrival at the admission worker to its answer.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._turn_s = Summary(
            "slicewise_turn_seconds",
            "Duration of the daemon's turns.",
            ["loop"],
            registry=self.registry,
        )
        self._failures = Counter(
            "slicewise_turn_failures",
            "Turns that failed.",
            ["loop"],
            registry=self.registry,
        )

    def decided(self, decided: Decided) -> None:
        """Count an answered submission."""
        self._decision_s.observe(decided.took_s)

    def turned(self, loop: str, took_s: float, *, failed: bool) -> None:
        """Count a finished turn of one of the daemon's loops, and its seconds."""
        self._turn_s.labels(loop).observe(took_s)
        # Show a count of 0, too: a rate needs a first value.
        self._failures.labels(loop).inc(int(failed))

    def watch(
        self,
        admission: AdmissionProcess,
        cluster_state: ClusterState,
        leader: Leader,
        unread: UnreadLog,
    ) -> None:
        """Export the state of these parts, too."""
        self.registry.register(_State(admission, cluster_state, leader, unread))

    def served(self, address: str) -> AbstractContextManager[None]:
        """Answer Prometheus at HOST:PORT while entered; raises what ``prometheus.served`` does."""
        return served(self.registry, address, "daemon.metrics")


class _State(Collector):
    def __init__(
        self,
        admission: AdmissionProcess,
        cluster_state: ClusterState,
        leader: Leader,
        unread: UnreadLog,
    ) -> None:
        self._unread = unread
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
        view = self._cluster_state.view
        yield gauge(
            "slicewise_uninstalled",
            "Whether Slicewise was taken out of Slurm: nothing is changed there.",
            self._cluster_state.is_uninstalled,
        )
        yield gauge(
            "slicewise_leads",
            "Whether this daemon leads: only the leader acts.",
            self._leader.leads(),
        )
        yield gauge(
            "slicewise_view_complete", "Whether the last look at Slurm was complete.", view.complete
        )
        age_s = time.time() - view.observed_s
        yield gauge(
            "slicewise_view_age_seconds", "Seconds since the last complete look began.", age_s
        )
        yield gauge(
            "slicewise_clock_step_seconds",
            "How far ahead the host's clock was set; the ledger doesn't follow it for an hour.",
            self._cluster_state.clock.stepped_s,
        )
        pending = [job for job in self._cluster_state.jobs if job.state is JobState.PENDING]
        managed = sum(JobTag.find(job.admin_comment) is not None for job in pending)
        yield gauge(
            "slicewise_pending_jobs",
            "Pending jobs and array tasks that Slicewise manages.",
            managed,
        )
        yield gauge(
            "slicewise_unadmitted_jobs",
            "Jobs with GPUs of managed partitions that slicewise.lua did not mark in mode enforce.",
            self._cluster_state.unadmitted.count,
        )

    def _of_admission(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "slicewise_decisions", "Submissions by answer.", labels=["action", "code"]
        )
        for (action, code), count in tuple(self._admission.decisions.items()):
            decisions.add_metric([action, code], count)
        yield decisions
        for name, text, count in (
            ("worker_restarts", "Admission workers that died.", self._admission.restarts),
            ("dropped_reports", "Decisions that could not be logged.", self._admission.dropped),
        ):
            yield CounterMetricFamily(f"slicewise_{name}", text, value=count)
        newest = self._admission.newest
        module = InfoMetricFamily("slicewise_module", "The slicewise.lua that asked last.")
        if newest is not None:
            labels = {"version": newest.module, "mode": newest.module_mode}
            module.add_metric([], labels)
        yield module

    def _of_slurm(self) -> Iterator[Metric]:
        unread = CounterMetricFamily(
            "slicewise_slurm_unreadable",
            "Values from Slurm that could not be read, counted at each look.",
            labels=["record", "field"],
        )
        for labels, count in tuple(self._unread.counts.items()):
            unread.add_metric(labels, count)
        yield unread
        asked = CounterMetricFamily(
            "slicewise_slurm_requests",
            "Questions that the daemon asked slurmctld; changes are not counted.",
            labels=["command"],
        )
        for command, count in tuple(ASKED.reads.items()):
            asked.add_metric([command], count)
        yield asked

    def _of_tenants(self) -> Iterator[Metric]:
        tenants, quotas = self._cluster_state.view.tenants, self._cluster_state.quotas
        nominal = {one.name: one.nominal_millislices for one in tenants}
        in_use = {one.name: one.in_use_millislices for one in tenants}
        own = {one.name: one.own_in_use_millislices for one in tenants}
        yield _by_tenant("nominal", f"What is guaranteed to {_SUBTREE}.", nominal)
        yield _by_tenant("in_use", f"What running jobs of {_SUBTREE} hold.", in_use)
        yield _by_tenant("own_in_use", "What the tenant's own running jobs hold.", own)
        ceilings = {name: one.ceiling_millislices for name, one in quotas.ceilings.items()}
        lent = {name: one.lent_millislices for name, one in quotas.ceilings.items()}
        borrowed = {name: one.borrowed_millislices for name, one in quotas.ceilings.items()}
        yield _by_tenant("ceiling", f"What {_SUBTREE} may hold now.", ceilings)
        yield _by_tenant("lent", f"What {_SUBTREE} lend to others.", lent)
        yield _by_tenant("borrowed", f"What {_SUBTREE} borrow from others.", borrowed)
        highest = f"The most that {_SUBTREE} could ever hold, with all that may be borrowed."
        yield _by_tenant("highest_ceiling", highest, quotas.highest_ceilings)

    def _of_budgets(self) -> Iterator[Metric]:
        quotas = self._cluster_state.quotas
        rules = {
            name: one.budget.amount_millislice_s
            for name, one in quotas.policy.items()
            if one.budget is not None
        }
        left = {name: at for name, at in quotas.left_millislice_s.items() if name in rules}
        unit = "millislice_seconds"
        yield _by_tenant("budget_rule", "What a tenant's budget gives in each period.", rules, unit)
        text = "What is left of a tenant's budget; less than 0 is debt."
        yield _by_tenant("budget_left", text, left, unit)


def _by_tenant(
    what: str, text: str, values: Mapping[str, int], unit: str = "millislices"
) -> Metric:
    family = GaugeMetricFamily(f"slicewise_tenant_{what}_{unit}", text, labels=["tenant"])
    for name, value in values.items():
        family.add_metric([name], value)
    return family
