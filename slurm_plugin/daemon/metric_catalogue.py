"""The catalogue of the daemon's metrics."""

from collections.abc import Mapping

from cluster.runtime.metric_catalogue import FLAG, MetricSpec, catalogue

_SUBTREE = "the tenant and the tenants below it"
_TENANT = ("tenant",)

METRICS: Mapping[str, MetricSpec] = catalogue(
    MetricSpec(
        "slicewise_decision_seconds",
        "histogram",
        "seconds",
        "Time from a question's arrival at the admission worker to its answer.",
    ),
    MetricSpec(
        "slicewise_decisions_total",
        "counter",
        "decisions",
        "Submissions by answer.",
        ("action", "code"),
    ),
    MetricSpec(
        "slicewise_dropped_reports_total",
        "counter",
        "reports",
        "Decisions that could not be logged.",
    ),
    MetricSpec(
        "slicewise_worker_restarts_total", "counter", "restarts", "Admission workers that died."
    ),
    MetricSpec(
        "slicewise_module_info",
        "info",
        "",
        "The slicewise.lua that asked last.",
        ("version", "mode"),
    ),
    MetricSpec(
        "slicewise_turn_seconds", "summary", "seconds", "Duration of the daemon's turns.", ("loop",)
    ),
    MetricSpec("slicewise_turn_failures_total", "counter", "", "Turns that failed.", ("loop",)),
    MetricSpec(
        "slicewise_slurm_unreadable_total",
        "counter",
        "",
        "Values from Slurm that could not be read, counted at each look; the log has which.",
        ("record",),
    ),
    MetricSpec(
        "slicewise_limits_changed_by_hand_total",
        "counter",
        "",
        "Settings in Slurm that were changed outside Slicewise, and put back or adopted.",
    ),
    MetricSpec(
        "slicewise_slurm_requests_total",
        "counter",
        "requests",
        "Questions that the daemon asked slurmctld; changes are not counted.",
        ("command",),
    ),
    MetricSpec(
        "slicewise_uninstalled",
        "gauge",
        FLAG,
        "Whether Slicewise was taken out of Slurm: nothing is changed there.",
    ),
    MetricSpec(
        "slicewise_leads", "gauge", FLAG, "Whether this daemon leads: only the leader acts."
    ),
    MetricSpec(
        "slicewise_view_complete", "gauge", FLAG, "Whether the last look at Slurm was complete."
    ),
    MetricSpec(
        "slicewise_view_age_seconds",
        "gauge",
        "seconds",
        "Seconds since the last complete look began.",
    ),
    MetricSpec(
        "slicewise_clock_step_seconds",
        "gauge",
        "seconds",
        "How far ahead the host's clock was set; the ledger doesn't follow it for an hour.",
    ),
    MetricSpec(
        "slicewise_pending_jobs",
        "gauge",
        "jobs",
        "Pending jobs and array tasks that Slicewise manages.",
    ),
    MetricSpec(
        "slicewise_unadmitted_jobs",
        "gauge",
        "jobs",
        "Jobs with GPUs of managed partitions that slicewise.lua did not mark in mode enforce.",
    ),
    MetricSpec(
        "slicewise_capacity_millislices",
        "gauge",
        "millislices",
        "What all GPUs of managed partitions are together, whatever state their nodes are in.",
    ),
    MetricSpec(
        "slicewise_tenant_nominal_millislices",
        "gauge",
        "millislices",
        f"What is guaranteed to {_SUBTREE}.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_in_use_millislices",
        "gauge",
        "millislices",
        f"What running jobs of {_SUBTREE} hold.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_own_in_use_millislices",
        "gauge",
        "millislices",
        "What the tenant's own running jobs hold.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_ceiling_millislices",
        "gauge",
        "millislices",
        f"What {_SUBTREE} may hold now.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_lent_millislices",
        "gauge",
        "millislices",
        f"What {_SUBTREE} lend to others.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_borrowed_millislices",
        "gauge",
        "millislices",
        f"What {_SUBTREE} borrow from others.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_highest_ceiling_millislices",
        "gauge",
        "millislices",
        f"The most that {_SUBTREE} could ever hold, with all that may be borrowed.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_late_jobs",
        "gauge",
        "jobs",
        "Jobs that wait for longer than `lending.grace_s` and a minute, though they fit into what "
        "the guaranteed quota has left.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_budget_rule_millislice_seconds",
        "gauge",
        "millislice_seconds",
        "What a tenant's budget gives in each period.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_budget_left_millislice_seconds",
        "gauge",
        "millislice_seconds",
        "What is left of a tenant's budget; less than 0 is debt.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_budget_period_seconds",
        "gauge",
        "seconds",
        "How long the period of a tenant's budget is, a month being 30 days; none if it has no "
        "period.",
        _TENANT,
    ),
)
