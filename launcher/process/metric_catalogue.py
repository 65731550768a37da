"""The catalogue of the launcher's metrics."""

from collections.abc import Mapping

from cluster.runtime.metric_catalogue import FLAG, MetricKind, MetricSpec, catalogue

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
    MetricSpec("slicewise_launcher_turn_seconds", "summary", "seconds", "Duration of turns."),
    MetricSpec(
        "slicewise_launcher_turn_failures_total",
        "counter",
        "",
        "Turns that could not read or change something, by error.",
        ("code",),
    ),
    MetricSpec("slicewise_launcher_leads", "gauge", FLAG, "Whether this launcher acts."),
    MetricSpec(
        "slicewise_launcher_gateway_seen",
        "gauge",
        FLAG,
        "Whether the last turn that asked HAProxy was answered.",
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
    _of_service("gauge", "wanted_replicas", "replicas", "Replicas that the autoscaler wants."),
    _of_service(
        "gauge", "ready_replicas", "replicas", "Replicas that get requests and pass their checks."
    ),
    _of_service("gauge", "waiting_requests", "requests", "Requests that wait for a replica."),
    _of_service("gauge", "in_flight_requests", "requests", "Requests that a replica works on."),
    _of_service(
        "gauge",
        "concurrent_requests",
        "requests",
        "Requests that each replica gets at the same time.",
    ),
    _of_service(
        "gauge", "failed_starts", "starts", "Failed starts in a row, of the newest generation."
    ),
    _of_service(
        "gauge",
        "doubted_replicas",
        "replicas",
        "Replicas that answer worse than others and are asked.",
    ),
    _of_service(
        "gauge",
        "removed_replicas",
        "replicas",
        "Replicas that failed when asked, in the last hour.",
    ),
    _of_service(
        "gauge", "first_token_seconds", "seconds", "Mean time in a replica to the first token."
    ),
    _of_service(
        "gauge",
        "first_token_p95_seconds",
        "seconds",
        f"95 % of the first tokens {_IN_REPLICA}.",
    ),
    _of_service(
        "gauge", "output_token_seconds", "seconds", "Mean time from one token to the next."
    ),
    _of_service(
        "gauge", "p50_seconds", "seconds", f"Half of the answers {_LATELY} took at most this."
    ),
    _of_service(
        "gauge", "p95_seconds", "seconds", f"95 % of the answers {_LATELY} took at most this."
    ),
    _of_service("gauge", "in_time_ratio", "ratio", f"Answers {_LATELY} that met the objective."),
    _of_service("counter", "answers", "answers", "Requests whose answer was passed on."),
    _of_service("counter", "errors", "errors", "Answers that say that the server failed."),
    _of_service(
        "counter",
        "cold_starts",
        "starts",
        "Times that requests waited: no replica was ready.",
    ),
    _of_service(
        "gauge",
        "server_running_requests",
        "requests",
        "Requests that replicas' servers work on.",
    ),
    _of_service(
        "gauge",
        "server_waiting_requests",
        "requests",
        "Requests that wait in replicas' servers.",
    ),
    _of_service(
        "gauge",
        "kv_cache_ratio",
        "ratio",
        "Share of a server's KV cache in use, where it is fullest.",
    ),
    _of_service(
        "counter",
        "preemptions",
        "preemptions",
        "Requests that servers set back: their KV cache was full.",
    ),
    _of_service("counter", "prompt_tokens", "tokens", "Tokens of prompts, as servers count them."),
    _of_service("counter", "output_tokens", "tokens", "Tokens that servers have made."),
    _of_service(
        "counter",
        "cache_lookup_tokens",
        "tokens",
        "Tokens of prompts that servers looked for in their KV cache.",
    ),
    _of_service("counter", "cache_hit_tokens", "tokens", "Those of them that were there."),
    _of_service(
        "counter",
        "adapter_requests",
        "requests",
        "Requests that named this LoRA adapter of the service and were let in.",
        ("adapter",),
    ),
)
