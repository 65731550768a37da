"""The catalogue of the daemon's metrics."""

from collections.abc import Mapping

from slicewise.cluster.runtime.metric_catalogue import FLAG, MetricSpec, catalogue

_SUBTREE = "the tenant and the tenants below it"
_TENANT = ("tenant",)

METRICS: Mapping[str, MetricSpec] = catalogue(
    MetricSpec(
        "slicewise_admission_duration_seconds",
        "histogram",
        "seconds",
        "Time from a question's arrival at the admission worker to its answer.",
    ),
    MetricSpec(
        "slicewise_admission_decisions_total",
        "counter",
        "decisions",
        "Submissions by answer.",
        ("action", "code"),
    ),
    MetricSpec(
        "slicewise_admission_unlogged_decisions_total",
        "counter",
        "decisions",
        "Decisions of admission that could not be logged.",
    ),
    MetricSpec(
        "slicewise_admission_worker_restarts_total",
        "counter",
        "restarts",
        "Admission workers that were replaced.",
        ("cause",),
    ),
    MetricSpec(
        "slicewise_lua_module_info",
        "info",
        "",
        "Version and mode of the slicewise.lua that asked last.",
        ("version", "mode"),
    ),
    MetricSpec(
        "slicewise_loop_duration_seconds",
        "summary",
        "seconds",
        "Duration of one round of a loop of the daemon.",
        ("loop",),
    ),
    MetricSpec(
        "slicewise_loop_failures_total", "counter", "", "Rounds of a loop that failed.", ("loop",)
    ),
    MetricSpec(
        "slicewise_slurm_unreadable_values_total",
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
        "slicewise_requeued_runs_total",
        "counter",
        "runs",
        "Runs of batch jobs on borrowed quota that were requeued for lenders.",
    ),
    MetricSpec(
        "slicewise_overcommitted_millislices",
        "gauge",
        "millislices",
        "How much the quotas at the top are together above the capacity.",
    ),
    MetricSpec(
        "slicewise_barred_jobs",
        "gauge",
        "jobs",
        "Jobs that lack quota and are lent none, as something else kept them from their start.",
    ),
    MetricSpec(
        "slicewise_barred_trials_total",
        "counter",
        "",
        "How often quota was lent again for such jobs, and none of them started.",
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
        "slicewise_is_leader",
        "gauge",
        FLAG,
        "Whether this daemon is the leader: only the leader acts.",
    ),
    MetricSpec(
        "slicewise_slurm_view_complete",
        "gauge",
        FLAG,
        "Whether the last look at Slurm was complete.",
    ),
    MetricSpec(
        "slicewise_slurm_view_age_seconds",
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
        f"The quota that operators set for {_SUBTREE}.",
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
        "slicewise_tenant_limit_millislices",
        "gauge",
        "millislices",
        f"The most that running jobs of {_SUBTREE} may hold now.",
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
        "slicewise_tenant_highest_limit_millislices",
        "gauge",
        "millislices",
        f"The most that the limit of {_SUBTREE} could ever be, with all that may be borrowed.",
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
        "slicewise_tenant_budget_amount_millislice_seconds",
        "gauge",
        "millislice_seconds",
        "What a tenant's budget grants in each period.",
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
        "slicewise_gpu_power_watts",
        "gauge",
        "watts",
        "What a node's boards draw, as its meter told within three minutes.",
        ("node",),
    ),
    MetricSpec(
        "slicewise_gpu_energy_joules_total",
        "counter",
        "joules",
        "What boards took, by the tenant whose runs it was, since this daemon heard of their "
        "meters; without one what is nobody's or no tenant's.",
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
    MetricSpec(
        "slicewise_tenant_token_budget_amount_tokens",
        "gauge",
        "tokens",
        "What a tenant's budget of tokens grants in each period.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_token_budget_left_tokens",
        "gauge",
        "tokens",
        "What is left of a tenant's budget of tokens; less than 0 is debt.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_token_budget_period_seconds",
        "gauge",
        "seconds",
        "How long the period of a tenant's budget of tokens is, as that of slices.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_month_cost_millionths",
        "gauge",
        "millionths",
        "What a tenant's own use costs since the month began, each ten minutes, in millionths of "
        "the tariff's currency. What is told after the month is in its invoice alone.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_money_budget_amount_millionths",
        "gauge",
        "millionths",
        "What a tenant and those below it should not exceed in a period, by the tariff, in "
        "millionths of its currency.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_money_budget_left_millionths",
        "gauge",
        "millionths",
        "What is left of that in the running period, each ten minutes; less than 0 is beyond it.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_money_budget_period_end_timestamp_seconds",
        "gauge",
        "seconds",
        "When the running period of that ends, in Unix seconds: then all of it is left again.",
        _TENANT,
    ),
    MetricSpec(
        "slicewise_tenant_money_budget_warn_ratio",
        "gauge",
        "ratio",
        "The part of that amount, once used, from which on it is said: warn_at of the tariff.",
        _TENANT,
    ),
)
