"""Tests what Prometheus reads from the launcher."""

import asyncio
import math
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.service_specs import a_spec
from free_ports import free_port
from metric_checks import breaches, lint, needs_promtool
from prometheus_client.parser import text_string_to_metric_families

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.starts import Moment, StartTrace, Weights
from slicewise.cluster.rpc.messages import ServiceQuality
from slicewise.launcher.process.metric_catalogue import METRICS
from slicewise.launcher.process.metrics import Metrics
from slicewise.launcher.process.turn import Turned
from slicewise.launcher.rules.autoscale.keep_warm import KeptWarm, WarmTotal
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.autoscale.tokens import TokensDone
from slicewise.launcher.rules.autoscale.types import ScalingDecision
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S
from slicewise.launcher.rules.engines.load import EngineCounts, ServersLoad
from slicewise.launcher.rules.gateway.routing import Route, RoutePlan
from slicewise.launcher.rules.gateway.timings import BUCKETS, Timings
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.outliers import Doubt, Watch
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.quality import Counts
from slicewise.launcher.rules.turn.service import ServicePlan
from slicewise.launcher.rules.turn.slots import Phase, Slot, SlotId
from slicewise.launcher.rules.turn.start_traces import Starts
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState

PHASES = (Phase.SERVING, Phase.SERVING, Phase.DRAINING, Phase.STARTING)
BERT = ServicePlan(
    array_job_id=7,
    service="nlp/bert",
    spec=a_spec(),
    decision=ScalingDecision(3, "why", kept_warm=KeptWarm(2)),
    slots=tuple(Slot(SlotId(7, n), phase, up=n != 1) for n, phase in enumerate(PHASES)),
    route=Route("nlp/bert", 1, {}, "triton"),
    desired_by_array={},
    retired=(),
    note="",
    load=Load(in_flight=4, queued=2, held=1),
    urgency=0.0,
    lost=frozenset(),
)
PLAN = TurnPlan((BERT,), RoutePlan((), {}, {}), {})
WATCHED = {
    0: Watch((907, 5), 40, 20, 1.0, 1.0, doubt=Doubt(1.0, 1.0, "why", is_worse=True, is_out=True)),
    1: Watch((908, 5), 40, 0, 1.0, 1.0),
}
GENERATION = GenerationState(backoff=Backoff(2, 1.0), watched=WATCHED, removed_s=(0.5, 0.8))
WARM = WarmTotal(7200, 5)
STATE = {"nlp/bert": ServiceState(None, {7: GENERATION}, warm=WARM)}
TURNED = Turned(STATE, PLAN, {}, (), {})
FIRSTS = tuple(20.0 * (edge_s == 1.0) for edge_s in (*FIRST_TOKEN_S, math.inf))
MEMORY = Memory(tokens=TokensDone(None, 4.0, 2.0, 100.0, 3.0, firsts=FIRSTS))
TOKENS = a_spec(engine="vllm", ttft_ms=500)
TIMED = Turned(
    {"nlp/bert": ServiceState(MEMORY, {7: GENERATION}, warm=WARM)},
    replace(PLAN, services=(replace(BERT, spec=TOKENS),)),
    {},
    (),
    {},
)
BLIND = Turned(STATE, None, {}, (), {})


async def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """As Prometheus gets them, by name and labels."""
    address = f"127.0.0.1:{free_port()}"

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics") as reply:
            return str(reply.read().decode())

    with metrics.served(address):
        text = await asyncio.to_thread(read)
    return {
        (sample.name, ",".join(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def busy() -> Metrics:
    """Of a launcher that has done everything that is counted."""
    metrics = Metrics(ALONE)
    metrics.turned(TIMED, 0.25)
    answered = ServiceQuality(
        span_s=300, answered=4, p50_ms=20.0, p95_ms=80.0, objective_met_share=0.75
    )
    counts = Counts(1.0, Timings((4,) * BUCKETS, errors=2), cold_starts=3)
    load = ServersLoad(7, 2, 0.75, EngineCounts(9.0, 33.0, 1702.0, 33.0, 16.0), 0.5)
    metrics.measured({"nlp/bert": answered}, {"nlp/bert": counts}, {"nlp/bert": load})
    metrics.counted({"nlp/bert:legal.v2": 7})
    metrics.failed("SW-DAEMON-DOWN", 0.25)
    return metrics


async def test_services_and_turns_are_shown() -> None:
    metrics = busy()
    metrics.turned(BLIND, 0.5)
    found = await samples(metrics)
    assert {key: found.get(key) for key in SHOWN} == SHOWN
    assert 0 <= found["slicewise_launcher_decision_age_seconds", ""] < 60


async def test_the_phases_of_a_start_are_counted_once_it_is_over() -> None:
    """Those that the launcher has read of its predecessor were counted by that."""
    old = StartTrace(7, 0, {"desired": 1.0, "released": 2.0}, "ready")
    at_s: Mapping[Moment, float] = {"desired": 5.0, "released": 5.25, "ready": 9.25}
    new = StartTrace(7, 0, at_s, "ready", Weights("remote", 1000, "room"))
    failed = StartTrace(7, 1, {"desired": 5.0, "ended": 6.0}, "ended")
    metrics = Metrics(ALONE)
    for over in ((old,), (old, new), (old, new), (old, new, failed)):
        state = {"nlp/bert": replace(STATE["nlp/bert"], starts=Starts(over))}
        metrics.turned(replace(TURNED, state=state), 0.25)
    counted = {
        key: value
        for key, value in (await samples(metrics)).items()
        if value and "launcher_start" in key[0] and not key[0].endswith(("_bucket", "_created"))
    }
    name = "slicewise_launcher_start_phase_seconds"
    assert counted == {
        (f"{name}_count", "grant,remote"): 1,
        (f"{name}_sum", "grant,remote"): 0.25,
        (f"{name}_count", "check,remote"): 1,
        (f"{name}_sum", "check,remote"): 4.0,
        (f"{name}_count", "ended,remote"): 1,
        (f"{name}_sum", "ended,remote"): 1.0,
        ("slicewise_launcher_starts_total", "remote,room"): 1,
        ("slicewise_launcher_start_weights_bytes_total", "remote"): 1000,
    }


SHOWN = {
    ("slicewise_launcher_is_leader", ""): 1,
    ("slicewise_launcher_gateway_up", ""): 1,
    ("slicewise_launcher_loop_duration_seconds_sum", ""): 1.0,
    ("slicewise_launcher_loop_duration_seconds_count", ""): 3,
    ("slicewise_launcher_loop_failures_total", "SW-DAEMON-DOWN"): 1,
    ("slicewise_launcher_loop_failures_total", "SW-GATEWAY-DOWN"): 0,
    ("slicewise_launcher_loop_failures_total", "SW-GATEWAY-FAILED"): 0,
    ("slicewise_service_desired_replicas", "bert,nlp"): 3,
    ("slicewise_service_ready_replicas", "bert,nlp"): 1,
    ("slicewise_service_backlog_requests", "bert,nlp"): 3,
    ("slicewise_service_in_flight_requests", "bert,nlp"): 4,
    ("slicewise_service_failed_starts", "bert,nlp"): 2,
    ("slicewise_service_warm_replicas", "bert,nlp"): 2,
    ("slicewise_service_warm_millislice_seconds_total", "bert,nlp"): 7200,
    ("slicewise_service_spared_requests_total", "bert,nlp"): 5,
    ("slicewise_service_response_p50_seconds", "bert,nlp"): 0.02,
    ("slicewise_service_response_p95_seconds", "bert,nlp"): 0.08,
    ("slicewise_service_objective_met_ratio", "bert,nlp"): 0.75,
    ("slicewise_service_responses_total", "bert,nlp"): 4 * BUCKETS,
    ("slicewise_service_failed_responses_total", "bert,nlp"): 2,
    ("slicewise_service_cold_starts_total", "bert,nlp"): 3,
    ("slicewise_service_engine_running_requests", "bert,nlp"): 7,
    ("slicewise_service_engine_waiting_requests", "bert,nlp"): 2,
    ("slicewise_service_engine_kv_cache_ratio", "bert,nlp"): 0.75,
    ("slicewise_service_engine_preemptions_total", "bert,nlp"): 9,
    ("slicewise_service_engine_prompt_tokens_total", "bert,nlp"): 33,
    ("slicewise_service_engine_output_tokens_total", "bert,nlp"): 1702,
    ("slicewise_service_engine_prefix_cache_lookup_tokens_total", "bert,nlp"): 33,
    ("slicewise_service_engine_prefix_cache_hit_tokens_total", "bert,nlp"): 16,
    ("slicewise_service_adapter_requests_total", "bert,legal.v2,nlp"): 7,
    ("slicewise_launcher_suspect_nodes", ""): 0,
    ("slicewise_service_suspect_replicas", "bert,nlp"): 1,
    ("slicewise_service_failed_replicas", "bert,nlp"): 2,
}


def test_all_that_is_served_is_as_catalogued() -> None:
    assert list(breaches(busy().registry.collect(), METRICS)) == []


@needs_promtool
def test_promtool_finds_nothing_to_mend_in_it() -> None:
    assert lint(busy().registry) == ""


def test_a_service_that_the_gateway_does_not_carry_has_no_series() -> None:
    """Users may submit any number of them."""
    more = replace(BERT, service="nlp/surplus")
    routes = replace(PLAN.routes, unrouted={"nlp/surplus": "the gateway has no free backend"})
    state = STATE | {"nlp/surplus": STATE["nlp/bert"]}
    metrics = Metrics(ALONE)
    plan = replace(PLAN, services=(BERT, more), routes=routes)
    metrics.turned(Turned(state, plan, {}, (), {}), 0.1)
    samples = [sample for one in metrics.registry.collect() for sample in one.samples]
    assert {one.labels["service"] for one in samples if "service" in one.labels} == {"bert"}


async def test_a_gateway_that_is_not_seen_is_shown_and_so_is_standby() -> None:
    metrics = Metrics(ALONE)
    metrics.turned(TURNED, 0.25)
    metrics.failed("SW-GATEWAY-DOWN", 2.0)
    metrics.stands_by()
    found = await samples(metrics)
    assert found["slicewise_launcher_gateway_up", ""] == 0
    assert not any(name.startswith("slicewise_service") for name, _ in found)


def test_an_address_that_can_not_be_had_is_told() -> None:
    expected = pytest.raises(SlicewiseError, match=r"launcher\.metrics.*SW-SETTINGS")
    with expected, Metrics(ALONE).served("256.1.1.1:0"):
        pass


async def test_what_servers_do_not_say_is_not_shown() -> None:
    metrics = Metrics(ALONE)
    metrics.turned(TURNED, 0.25)
    metrics.measured({}, {}, {"nlp/bert": ServersLoad(7, 2)})
    found = await samples(metrics)
    shown = [name for name, _ in found if re.search("engine_|kv_|preemp|_tokens", name)]
    assert shown == [f"slicewise_service_engine_{one}_requests" for one in ("running", "waiting")]


async def test_times_of_tokens_are_shown_where_there_is_an_objective() -> None:
    state = TIMED.state
    names = [
        f"slicewise_service_{one}_seconds"
        for one in ("time_to_first_token", "time_to_first_token_p95", "time_per_output_token")
    ]
    for spec, wanted in ((TOKENS, [0.5, 0.99, 0.03]), (BERT.spec, [])):
        metrics = Metrics(ALONE)
        plan = replace(PLAN, services=(replace(BERT, spec=spec),))
        metrics.turned(Turned(state, plan, {}, (), {}), 0.1)
        found = await samples(metrics)
        assert [found[name, "bert,nlp"] for name in names if (name, "bert,nlp") in found] == wanted
