"""The catalogue of the launcher's metrics."""

from collections.abc import Mapping

from slicewise.cluster.runtime.metric_catalogue import FLAG, MetricKind, MetricSpec, catalogue

_LATELY = "of the last 5 to 10 minutes"
_IN_REPLICA = "came within this time in a replica, where its engine has a histogram of that"
_SERVICE = ("tenant", "service")


def _of_service(
    kind: MetricKind, what: str, unit: str, text: str, more: tuple[str, ...] = ()
) -> MetricSpec:
    """A metric of each service; of a counter ``what`` comes without its end."""
    end = "_total" if kind == "counter" else ""
    return MetricSpec(f"slicewise_service_{what}{end}", kind, unit, text, (*_SERVICE, *more))


METRICS: Mapping[str, MetricSpec] = catalogue(
    MetricSpec(
        "slicewise_launcher_loop_duration_seconds",
        "summary",
        "seconds",
        "Duration of one round of the launcher's loop.",
    ),
    MetricSpec(
        "slicewise_launcher_loop_failures_total",
        "counter",
        "",
        "Rounds that could not read or change something, by error.",
        ("code",),
    ),
    MetricSpec(
        "slicewise_launcher_is_leader",
        "gauge",
        FLAG,
        "Whether this launcher is the leader: only the leader acts.",
    ),
    MetricSpec(
        "slicewise_launcher_gateway_up",
        "gauge",
        FLAG,
        "Whether HAProxy answered the last round that asked it.",
    ),
    MetricSpec(
        "slicewise_launcher_decision_age_seconds",
        "gauge",
        "seconds",
        "Seconds since the last decision, or since the start.",
    ),
    MetricSpec(
        "slicewise_launcher_suspect_nodes",
        "gauge",
        "nodes",
        "Nodes on which replicas of several services failed in the last hour.",
    ),
    MetricSpec(
        "slicewise_launcher_missed_requests_total",
        "counter",
        "requests",
        "Requests whose tokens nobody will book: the gateway's ring or the journal had no room.",
    ),
    MetricSpec(
        "slicewise_launcher_usage_batches",
        "gauge",
        "batches",
        "Batches of what requests used that the daemon has not booked yet.",
    ),
    MetricSpec(
        "slicewise_launcher_start_phase_seconds",
        "histogram",
        "seconds",
        "How long each phase of replicas' starts took.",
        ("phase", "start_class"),
    ),
    MetricSpec(
        "slicewise_launcher_starts_total",
        "counter",
        "starts",
        "Starts of replicas that became ready.",
        ("start_class", "fallback"),
    ),
    MetricSpec(
        "slicewise_launcher_start_weights_bytes_total",
        "counter",
        "bytes",
        "Weights that starts read, where a node cache is set.",
        ("start_class",),
    ),
    _of_service("gauge", "desired_replicas", "replicas", "Replicas that the autoscaler wants."),
    _of_service(
        "gauge", "ready_replicas", "replicas", "Replicas that get requests and pass their checks."
    ),
    _of_service("gauge", "backlog_requests", "requests", "Requests that wait for a replica."),
    _of_service("gauge", "in_flight_requests", "requests", "Requests that a replica works on."),
    _of_service(
        "gauge",
        "concurrency_requests",
        "requests",
        "Requests that each replica gets at the same time.",
    ),
    _of_service(
        "gauge", "failed_starts", "starts", "Failed starts in a row, of the newest generation."
    ),
    _of_service(
        "gauge",
        "suspect_replicas",
        "replicas",
        "Replicas that answer worse than others and are asked.",
    ),
    _of_service(
        "gauge",
        "failed_replicas",
        "replicas",
        "Replicas that failed when asked, in the last hour: each is replaced.",
    ),
    _of_service(
        "gauge",
        "warm_replicas",
        "replicas",
        "Replicas that serve while no present request needs them.",
    ),
    _of_service(
        "counter",
        "warm_millislice_seconds",
        "millislice_seconds",
        "Millislices times seconds of replicas that served while no request needed them.",
    ),
    _of_service(
        "counter",
        "spared_requests",
        "requests",
        "Requests that would have waited without those, at least; none of a pool are counted.",
    ),
    _of_service(
        "gauge",
        "time_to_first_token_seconds",
        "seconds",
        "Mean time in a replica to the first token.",
    ),
    _of_service(
        "gauge",
        "time_to_first_token_p95_seconds",
        "seconds",
        f"95 % of the first tokens {_IN_REPLICA}.",
    ),
    _of_service(
        "gauge", "time_per_output_token_seconds", "seconds", "Mean time from one token to the next."
    ),
    _of_service(
        "gauge",
        "response_p50_seconds",
        "seconds",
        f"Half of the answers {_LATELY} took at most this.",
    ),
    _of_service(
        "gauge",
        "response_p95_seconds",
        "seconds",
        f"95 % of the answers {_LATELY} took at most this.",
    ),
    _of_service(
        "gauge", "objective_met_ratio", "ratio", f"Answers {_LATELY} that met the objective."
    ),
    _of_service("counter", "responses", "responses", "Requests whose answer was passed on."),
    _of_service(
        "counter", "failed_responses", "responses", "Answers that say that the server failed."
    ),
    _of_service(
        "counter",
        "cold_starts",
        "starts",
        "Times that requests waited: no replica was ready.",
    ),
    _of_service(
        "gauge",
        "engine_running_requests",
        "requests",
        "Requests that replicas' servers work on.",
    ),
    _of_service(
        "gauge",
        "engine_waiting_requests",
        "requests",
        "Requests that wait in replicas' servers.",
    ),
    _of_service(
        "gauge",
        "engine_kv_cache_ratio",
        "ratio",
        "Share of a server's KV cache in use, where it is fullest.",
    ),
    _of_service(
        "counter",
        "engine_preemptions",
        "preemptions",
        "Requests that servers set back: their KV cache was full.",
    ),
    _of_service(
        "counter", "engine_prompt_tokens", "tokens", "Tokens of prompts, as servers count them."
    ),
    _of_service("counter", "engine_output_tokens", "tokens", "Tokens that servers have made."),
    _of_service(
        "counter",
        "engine_prefix_cache_lookup_tokens",
        "tokens",
        "Tokens of prompts that servers looked for in their KV cache.",
    ),
    _of_service(
        "counter",
        "engine_prefix_cache_hit_tokens",
        "tokens",
        "Tokens of prompts that servers found in their KV cache.",
    ),
    _of_service(
        "counter",
        "adapter_requests",
        "requests",
        "Requests that named this LoRA adapter of the service and were let in.",
        ("adapter",),
    ),
)
