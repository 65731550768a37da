"""Makes etc/grafana/dashboards: what Grafana shows of Slicewise's metrics and recording rules."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicewise.cluster.language.palette import FIGURES

FOLDER = Path(__file__).parents[1] / "etc" / "grafana" / "dashboards"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SCHEMA = 39
_COLUMNS, _HEIGHT = 24, 8
_ALL = {"text": "All", "value": "$__all"}
_OF = {
    "C": 'cluster=~"$cluster"',
    "T": 'cluster=~"$cluster",tenant=~"$tenant"',
    "S": 'cluster=~"$cluster",tenant=~"$tenant",service=~"$service"',
}
"""What a variable of the dashboard selects, by the letter that stands for it in a query."""


@dataclass(frozen=True)
class Panel:
    """A graph, or ``stat``: its last values in large print.

    Attributes:
        unit: Grafana's word for it.
        queries: PromQL with ``{C}``, ``{T}`` or ``{S}`` where the variables select, each after its
            legend.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8


def stat(title: str, unit: str, query: str) -> Panel:
    """A figure in large print."""
    return Panel(title, unit, (("", query),), "stat", 4)


@dataclass(frozen=True)
class Board:
    """A dashboard; each of its variables selects among values of a label of this metric."""

    uid: str
    title: str
    variables: Mapping[str, str]
    rows: Mapping[str, tuple[Panel, ...]]


_CLUSTER = {"cluster": "slicewise_is_leader"}
_TENANT = {**_CLUSTER, "tenant": 'slicewise_tenant_nominal_millislices{cluster=~"$cluster"}'}
_SERVICE = {
    **_CLUSTER,
    "tenant": 'slicewise_service_desired_replicas{cluster=~"$cluster"}',
    "service": 'slicewise_service_desired_replicas{cluster=~"$cluster",tenant=~"$tenant"}',
}
_BY_SERVICE = "{{tenant}}/{{service}}"
_WORDS = {name: look.word for name, look in FIGURES.items()}


def _amounts(*names: str) -> tuple[tuple[str, str], ...]:
    """A line of a tenant's slices for each of these figures."""
    return tuple((f"{{{{tenant}}}} {_WORDS[name]}", _held(name)) for name in names)


def _held(what: str) -> str:
    return f"max by (tenant) (slicewise_tenant_{what}_millislices{{T}}) / 1000"


def _service(what: str) -> str:
    return f"max by (tenant, service) (slicewise_service_{what}{{S}})"


def _per_s(what: str, by: str = "tenant, service") -> str:
    return f"sum by ({by}) (rate(slicewise_service_{what}_total{{S}}[$__rate_interval]))"


_PHASE_MEAN = (
    "sum by (start_class, phase) (increase(slicewise_launcher_start_phase_seconds_sum{C}[1h]))"
    " / sum by (start_class, phase)"
    " (increase(slicewise_launcher_start_phase_seconds_count{C}[1h]) > 0)"
)

CLUSTER = Board(
    "slicewise-cluster",
    "Slicewise: cluster",
    _CLUSTER,
    {
        "Now": (
            stat("Daemons that lead", "none", "sum(slicewise_is_leader{C})"),
            stat("Launchers that lead", "none", "sum(slicewise_launcher_is_leader{C})"),
            stat("HAProxy answers", "none", "max(slicewise_launcher_gateway_up{C})"),
            stat("Look at Slurm is old by", "s", "min(slicewise_slurm_view_age_seconds{C})"),
            stat("Slices in use", "percentunit", "avg(cluster:slicewise_in_use:ratio{C})"),
            stat(
                "Part of the tenants in time",
                "percentunit",
                "avg(cluster:slicewise_tenants_in_time:ratio{C})",
            ),
        ),
        "Slices": (
            Panel(
                "In use",
                "percentunit",
                (("{{cluster}}", "cluster:slicewise_in_use:ratio{C}"),),
            ),
            Panel(
                "Slices that tenants' own jobs hold",
                "none",
                (
                    (
                        "{{tenant}}",
                        "max by (tenant) (slicewise_tenant_own_in_use_millislices{C}) / 1000",
                    ),
                    ("capacity", "max(slicewise_capacity_millislices{C}) / 1000"),
                ),
            ),
            Panel(
                "Slices lent",
                "none",
                (
                    (
                        "{{tenant}}",
                        "max by (tenant) (slicewise_tenant_lent_millislices{C}) / 1000",
                    ),
                ),
            ),
        ),
        "Energy of boards with a meter": (
            Panel(
                "Watts now",
                "watt",
                (("{{node}}", "max by (node) (slicewise_gpu_power_watts{C})"),),
                width=12,
            ),
            Panel(
                "Joules per second by tenant; without one nobody's",
                "watt",
                (
                    (
                        "{{tenant}}",
                        "sum by (tenant) (rate(slicewise_gpu_energy_joules_total{C}[15m]))",
                    ),
                ),
                width=12,
            ),
        ),
        "Money": (
            Panel(
                "Since the month began, by tenant, in the tariff's currency",
                "none",
                (
                    (
                        "{{tenant}}",
                        "max by (tenant) (slicewise_tenant_month_cost_millionths{C}) / 1e6",
                    ),
                ),
                width=24,
            ),
        ),
        "Waiting": (
            Panel("Pending jobs", "none", (("{{cluster}}", "slicewise_pending_jobs{C}"),)),
            Panel(
                "Jobs that wait beyond the grace time within the guaranteed quota",
                "none",
                (("{{tenant}}", "tenant:slicewise_late_jobs:max{C}"),),
            ),
            Panel(
                "Backlog: requests that wait",
                "none",
                ((_BY_SERVICE, "slicewise_service_backlog_requests{C}"),),
            ),
        ),
        "Starts of replicas": (
            Panel(
                "Mean of each phase, by where the weights were",
                "s",
                (("{{start_class}} {{phase}}", _PHASE_MEAN),),
                width=12,
            ),
            Panel(
                "Loads: 95 % took at most",
                "s",
                (
                    (
                        "{{start_class}}",
                        (
                            "histogram_quantile(0.95, sum by (le, start_class) (increase("
                            'slicewise_launcher_start_phase_seconds_bucket{C,phase="load"}[1h])))'
                        ),
                    ),
                ),
                width=12,
            ),
            Panel(
                "Starts in 1 h, by where the weights were, and why not on the node",
                "none",
                (
                    (
                        "{{start_class}} {{fallback}}",
                        (
                            "sum by (start_class, fallback)"
                            " (increase(slicewise_launcher_starts_total{C}[1h]))"
                        ),
                    ),
                ),
                width=12,
            ),
            Panel(
                "Weights read per second",
                "Bps",
                (
                    (
                        "{{start_class}}",
                        (
                            "sum by (start_class) (rate("
                            "slicewise_launcher_start_weights_bytes_total{C}[$__rate_interval]))"
                        ),
                    ),
                ),
                width=12,
            ),
        ),
        "What is wrong": (
            Panel(
                "Alerts that fire",
                "none",
                (
                    (
                        "{{alertname}} {{tenant}} {{service}}",
                        'ALERTS{C,alertname=~"Slicewise.*",alertstate="firing"}',
                    ),
                ),
            ),
            Panel(
                "Nodes on which replicas of several services failed",
                "none",
                (("{{cluster}}", "slicewise_launcher_suspect_nodes{C}"),),
            ),
            Panel(
                "Jobs without a decision",
                "none",
                (("{{cluster}}", "slicewise_unadmitted_jobs{C}"),),
            ),
        ),
    },
)
TENANTS = Board(
    "slicewise-tenants",
    "Slicewise: tenants",
    _TENANT,
    {
        "Quota": (
            Panel(
                "In use, of the nominal",
                "percentunit",
                (("{{tenant}}", "tenant:slicewise_in_use:ratio{T}"),),
            ),
            Panel(
                "Slices in use, and the limit",
                "none",
                _amounts("in_use", "limit", "nominal", "highest_limit"),
            ),
            Panel("Slices lent and borrowed", "none", _amounts("lent", "borrowed")),
        ),
        "Budget": (
            Panel(
                "Budget left, in slice-hours",
                "none",
                (
                    (
                        "{{tenant}}",
                        (
                            "max by (tenant)"
                            " (slicewise_tenant_budget_left_millislice_seconds{T}) / 3.6e6"
                        ),
                    ),
                ),
            ),
            Panel(
                "Budget left, of what a period gives",
                "percentunit",
                (
                    (
                        "{{tenant}}",
                        (
                            "max by (tenant) (slicewise_tenant_budget_left_millislice_seconds{T})"
                            " / max by (tenant)"
                            " (slicewise_tenant_budget_amount_millislice_seconds{T} > 0)"
                        ),
                    ),
                ),
            ),
            Panel(
                "Burn rate: 1 lasts exactly a period",
                "none",
                (
                    ("{{tenant}} 1 h", "tenant:slicewise_budget_burn:rate1h{T}"),
                    ("{{tenant}} 6 h", "tenant:slicewise_budget_burn:rate6h{T}"),
                ),
            ),
        ),
        "Waiting": (
            Panel(
                "Jobs that wait beyond the grace time within the guaranteed quota",
                "none",
                (("{{tenant}}", "tenant:slicewise_late_jobs:max{T}"),),
                width=12,
            ),
            Panel(
                "Slices that the tenant's own jobs hold",
                "none",
                (("{{tenant}}", _held("own_in_use")),),
                width=12,
            ),
        ),
    },
)
SERVICES = Board(
    "slicewise-services",
    "Slicewise: services",
    _SERVICE,
    {
        "Answers": (
            Panel(
                "Requests per second",
                "reqps",
                (
                    (f"{_BY_SERVICE} answered", _per_s("responses")),
                    (f"{_BY_SERVICE} failed", _per_s("failed_responses")),
                ),
            ),
            Panel(
                "Time of answers",
                "s",
                (
                    (f"{_BY_SERVICE} 50 %", _service("response_p50_seconds")),
                    (
                        f"{_BY_SERVICE} {_WORDS['p95']}",
                        "service:slicewise_response_p95_seconds:max{S}",
                    ),
                ),
            ),
            Panel(
                "In time, and failed",
                "percentunit",
                (
                    (f"{_BY_SERVICE} in time", _service("objective_met_ratio")),
                    (
                        f"{_BY_SERVICE} failed, 1 h",
                        "service:slicewise_failed_responses:ratio_rate1h{S}",
                    ),
                    (
                        f"{_BY_SERVICE} failed, 6 h",
                        "service:slicewise_failed_responses:ratio_rate6h{S}",
                    ),
                ),
            ),
        ),
        "Replicas": (
            Panel(
                "Replicas",
                "none",
                (
                    (f"{_BY_SERVICE} {_WORDS['desired']}", _service("desired_replicas")),
                    (f"{_BY_SERVICE} {_WORDS['ready']}", _service("ready_replicas")),
                    (f"{_BY_SERVICE} kept warm", _service("warm_replicas")),
                ),
            ),
            Panel(
                "Requests",
                "none",
                (
                    (f"{_BY_SERVICE} {_WORDS['backlog']}", _service("backlog_requests")),
                    (f"{_BY_SERVICE} {_WORDS['in_flight']}", _service("in_flight_requests")),
                    (f"{_BY_SERVICE} at once a replica", _service("concurrency_requests")),
                ),
            ),
            Panel(
                "Trouble",
                "none",
                (
                    (f"{_BY_SERVICE} failed starts", _service("failed_starts")),
                    (f"{_BY_SERVICE} suspect", _service("suspect_replicas")),
                    (f"{_BY_SERVICE} replaced", _service("failed_replicas")),
                    (
                        f"{_BY_SERVICE} cold starts in 1 h",
                        (
                            "sum by (tenant, service)"
                            " (increase(slicewise_service_cold_starts_total{S}[1h]))"
                        ),
                    ),
                ),
            ),
        ),
        "Language models": (
            Panel(
                "Tokens per second",
                "none",
                (
                    (f"{_BY_SERVICE} prompts", _per_s("engine_prompt_tokens")),
                    (f"{_BY_SERVICE} made", _per_s("engine_output_tokens")),
                ),
            ),
            Panel(
                "Time of tokens",
                "s",
                (
                    (f"{_BY_SERVICE} first, mean", _service("time_to_first_token_seconds")),
                    (f"{_BY_SERVICE} first, 95 %", _service("time_to_first_token_p95_seconds")),
                    (f"{_BY_SERVICE} next, mean", _service("time_per_output_token_seconds")),
                ),
            ),
            Panel(
                "Requests in servers",
                "none",
                (
                    (f"{_BY_SERVICE} run", _service("engine_running_requests")),
                    (f"{_BY_SERVICE} wait", _service("engine_waiting_requests")),
                    (f"{_BY_SERVICE} set back per s", _per_s("engine_preemptions")),
                ),
            ),
            Panel(
                "KV cache",
                "percentunit",
                (
                    (f"{_BY_SERVICE} in use", _service("engine_kv_cache_ratio")),
                    (
                        f"{_BY_SERVICE} hits",
                        (
                            f"{_per_s('engine_prefix_cache_hit_tokens')}"
                            f" / {_per_s('engine_prefix_cache_lookup_tokens')}"
                        ),
                    ),
                ),
                width=12,
            ),
            Panel(
                "Requests for adapters per second",
                "reqps",
                (
                    (
                        f"{_BY_SERVICE}:{{{{adapter}}}}",
                        _per_s("adapter_requests", "tenant, service, adapter"),
                    ),
                ),
                width=12,
            ),
        ),
    },
)
INTERNALS = Board(
    "slicewise-internals",
    "Slicewise: daemon, ledger, launcher",
    _CLUSTER,
    {
        "The daemon's loops; bookkeeping, limits and retention wait for the ledger": (
            Panel(
                "Mean duration of a round",
                "s",
                (
                    (
                        "{{loop}}",
                        (
                            "sum by (loop)"
                            " (rate(slicewise_loop_duration_seconds_sum{C}[$__rate_interval]))"
                            " / sum by (loop)"
                            " (rate(slicewise_loop_duration_seconds_count{C}[$__rate_interval]))"
                        ),
                    ),
                ),
            ),
            Panel(
                "Rounds that failed in 10 minutes",
                "none",
                (
                    (
                        "{{loop}}",
                        "sum by (loop) (increase(slicewise_loop_failures_total{C}[10m]))",
                    ),
                ),
            ),
            Panel(
                "Clock, and age of the look at Slurm",
                "s",
                (
                    ("{{instance}} set ahead by", "slicewise_clock_step_seconds{C}"),
                    ("{{instance}} look", "slicewise_slurm_view_age_seconds{C}"),
                ),
            ),
        ),
        "Admission": (
            Panel(
                "Decisions per second",
                "none",
                (
                    (
                        "{{action}} {{code}}",
                        (
                            "sum by (action, code)"
                            " (rate(slicewise_admission_decisions_total{C}[$__rate_interval]))"
                        ),
                    ),
                ),
            ),
            Panel(
                "Time of a decision",
                "s",
                tuple(
                    (
                        f"{100 * share:g} %",
                        (
                            f"histogram_quantile({share}, sum by (le)"
                            " (rate(slicewise_admission_duration_seconds_bucket{C}"
                            "[$__rate_interval])))"
                        ),
                    )
                    for share in (0.5, 0.99)
                ),
            ),
            Panel(
                "Workers replaced, decisions not logged, in 1 h",
                "none",
                (
                    ("replaced", "sum(increase(slicewise_admission_worker_restarts_total{C}[1h]))"),
                    (
                        "not logged",
                        "sum(increase(slicewise_admission_unlogged_decisions_total{C}[1h]))",
                    ),
                ),
            ),
        ),
        "Slurm": (
            Panel(
                "Questions to slurmctld per second",
                "none",
                (
                    (
                        "{{command}}",
                        (
                            "sum by (command)"
                            " (rate(slicewise_slurm_requests_total{C}[$__rate_interval]))"
                        ),
                    ),
                ),
            ),
            Panel(
                "Values that could not be read, in 1 h",
                "none",
                (
                    (
                        "{{record}}",
                        (
                            "sum by (record)"
                            " (increase(slicewise_slurm_unreadable_values_total{C}[1h]))"
                        ),
                    ),
                ),
            ),
            Panel(
                "Limits changed by hand, in 1 h",
                "none",
                (
                    (
                        "{{cluster}}",
                        (
                            "sum by (cluster)"
                            " (increase(slicewise_limits_changed_by_hand_total{C}[1h]))"
                        ),
                    ),
                ),
            ),
        ),
        "The launcher": (
            Panel(
                "Mean duration of a round",
                "s",
                (
                    (
                        "{{instance}}",
                        (
                            "rate(slicewise_launcher_loop_duration_seconds_sum{C}[$__rate_interval])"
                            " / rate(slicewise_launcher_loop_duration_seconds_count{C}"
                            "[$__rate_interval])"
                        ),
                    ),
                ),
            ),
            Panel(
                "Rounds that failed in 10 minutes",
                "none",
                (
                    (
                        "{{code}}",
                        "sum by (code) (increase(slicewise_launcher_loop_failures_total{C}[10m]))",
                    ),
                ),
            ),
            Panel(
                "Age of the last decision",
                "s",
                (("{{instance}}", "slicewise_launcher_decision_age_seconds{C}"),),
            ),
        ),
    },
)
BOARDS = (CLUSTER, TENANTS, SERVICES, INTERNALS)


def files() -> Mapping[str, str]:
    """The text of each file, by its name."""
    return {f"{one.uid}.json": f"{json.dumps(_board(one), indent=1)}\n" for one in BOARDS}


def _board(board: Board) -> Mapping[str, Any]:
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["slicewise"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables(board.variables))},
        "panels": list(_panels(board.rows)),
    }


def _variables(metrics: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    for label, metric in metrics.items():
        yield {
            "name": label,
            "label": label.capitalize(),
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({metric}, {label})", "refId": label},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            # Of series without this label, too: a site with one cluster need not name it.
            "allValue": ".*",
            "current": _ALL,
        }


def _panels(rows: Mapping[str, tuple[Panel, ...]]) -> Iterator[Mapping[str, Any]]:
    number, y = 1, 0
    for title, panels in rows.items():
        at = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "gridPos": at,
            "collapsed": False,
            "panels": [],
        }
        number, y, x = number + 1, y + 1, 0
        for one in panels:
            if x + one.width > _COLUMNS:
                x, y = 0, y + _HEIGHT
            yield _panel(one, number, x, y)
            number, x = number + 1, x + one.width
        y += _HEIGHT


def _panel(panel: Panel, number: int, x: int, y: int) -> Mapping[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    graph = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    figure = {"reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT},
        "datasource": _SOURCE,
        "targets": list(_targets(panel.queries)),
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": list(_colours(panel))},
        "options": figure if panel.kind == "stat" else graph,
    }


def _colours(panel: Panel) -> Iterator[Mapping[str, Any]]:
    """The palette's colours and dashes of the figures that a panel has lines of.

    Where all lines are of one figure, colours tell tenants apart instead.
    """
    legends = [legend for legend, _ in panel.queries]
    for look in FIGURES.values() if len(legends) > 1 else ():
        if not any(legend.endswith(f"}} {look.word}") for legend in legends):
            continue
        # Of Grafana's two themes dark is the default; these stand out on both.
        drawn: list[Mapping[str, Any]] = [
            {"id": "color", "value": {"mode": "fixed", "fixedColor": look.colour.dark}}
        ]
        if look.dashes:
            style = {"fill": "dash", "dash": list(look.dashes)}
            drawn.append({"id": "custom.lineStyle", "value": style})
        matcher = {"id": "byRegexp", "options": rf"/^\S+ {look.word}$/"}
        yield {"matcher": matcher, "properties": drawn}


def _targets(queries: Sequence[tuple[str, str]]) -> Iterator[Mapping[str, Any]]:
    for number, (legend, query) in enumerate(queries):
        selected = query
        for letter, of in _OF.items():
            selected = selected.replace(f"{{{letter}", f"{{{of}")
        ref_id = chr(ord("A") + number)
        yield {"refId": ref_id, "datasource": _SOURCE, "expr": selected, "legendFormat": legend}
