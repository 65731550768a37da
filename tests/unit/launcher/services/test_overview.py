"""Tests what users see of a service: replicas by state, load, and what is hidden from them."""

from typing import Any, get_args

import json_checker
import pytest
from builders.gateways import a_server
from builders.service_views import a_report, a_service, a_tenant_view
from printed_text import printed_text
from rich.console import Console

from slicewise.cluster.language.keep_warm import WarmDay
from slicewise.cluster.rpc.messages import (
    WHEN_REPLACED_S,
    AdapterReport,
    ReplicaLoad,
    ServiceQuality,
    ServiceView,
    SlotView,
    ViewAnswer,
)
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
from slicewise.cluster.runtime import console
from slicewise.launcher.cli import show_file, show_services
from slicewise.launcher.rules.gateway.types import Backend, Gateway, Load, Server, ServerMode
from slicewise.launcher.services.overview import Condition, ServiceObservation, State, join


def slot(index: int, state: str, **more: object) -> SlotView:
    values: dict[str, object] = {"index": index, "state": state}
    if state == "running":
        ports = (21001 + index, 22001 + index)
        values |= {"job_id": 9, "address": "10.0.0.1", "ports": ports, "start_s": 1, "node": "n1"}
        values["certificate"] = "CCCC"
    return SlotView.model_validate(values | more)


def service(
    array: int, *slots: SlotView, note: str = "", order: ServiceOrder = NO_ORDER
) -> ServiceView:
    return a_service(
        array_job_id=array,
        submit_s=0,
        directives={"min_replicas": "1"},
        slots=slots,
        note=note,
        order=order,
    )


STATES = ("running", "running", "running", "starting", "released", "ending", "held", "held", "gone")
SERVICE = service(
    7,
    *(slot(index, state) for index, state in enumerate(STATES)),
    note="quota: vision holds 4 of 4 slices",
)
TENANT = a_tenant_view(3500, own_in_use_millislices=1000)
VIEW = ViewAnswer(observed_s=1.0, complete=True, services=(SERVICE,), tenants=(TENANT,))


def of(*services: ServiceView, at_s: float = 1.0) -> ViewAnswer:
    return VIEW.model_copy(update={"services": services, "observed_s": at_s})


def server(index: int, mode: ServerMode, *, up: bool = True) -> Server:
    return a_server(index, mode, 1, up=up)


GATEWAY = Gateway(
    {"vision/chat": "triton1"},
    {
        "triton1": Backend(
            9,
            6,
            (
                server(1, ServerMode.DRAIN),
                server(0, ServerMode.READY),
                server(2, ServerMode.READY, up=False),
            ),
        )
    },
    complete=True,
)


def observed(gateway: Gateway | None = GATEWAY, view: ViewAnswer = VIEW) -> ServiceObservation:
    return join(view, gateway, "http://gw:8080/", last_line=last_line)[0]


def last_line(view: ServiceView, index: int) -> str:
    return f"{view.array_job_id}_{index} loads"


def slots(found: ServiceObservation, state: State) -> set[int]:
    return {one.slot for one in found.in_state(state)}


def test_one_owner_s_odd_number_breaks_no_list():
    odd = {"gpus": "2.0", "nodes": "x", "min_replicas": "1.0"}
    found = observed(view=of(SERVICE.model_copy(update={"directives": odd})))
    assert (found.shape.gpus, found.shape.nodes, found.min_replicas) == (2, 1, 1)


def test_slots_by_what_they_do():
    found = observed()
    assert slots(found, "ready") == {0}
    assert slots(found, "draining") == {1, 5}
    assert slots(found, "starting") == {2, 3, 4}
    assert (slots(found, "held"), slots(found, "gone")) == ({6, 7}, {8})


def test_a_replica_with_other_files_than_applied_is_marked():
    told = ("", "a" * 16, "b" * 16)
    running = (
        slot(index, "running").model_copy(update={"files_digest": files})
        for index, files in enumerate(told)
    )
    applied = service(7, *running)
    known = applied.model_copy(update={"directives": {"model_digest": "a" * 16}})
    replicas = observed(view=of(known)).every_slot
    assert [one.has_other_files for one in replicas] == [False, False, True]
    assert "other model files than applied" in show_services._remark(replicas[2])
    assert not any(one.has_other_files for one in observed(view=of(applied)).replicas)


def test_who_sees_the_gateway_is_told_the_same_of_a_replica_whose_ports_were_missed():
    """An operator read "starting" where the tenant read "ready": the launcher remembers ports."""
    missed = service(7, *(slot(index, "starting", start_s=1) for index in range(3)))
    told = NEWS.model_copy(update={"ready": ((7, 0),), "draining": ((7, 1),)})
    view = of(missed).model_copy(update={"service_reports": (told,)})
    for gateway in (GATEWAY, None):
        found = observed(gateway, view)
        assert [slots(found, state) for state in ("ready", "draining", "starting")] == [
            {0},
            {1},
            {2},
        ]


def test_a_slot_that_waits_for_slurm_is_not_ready_because_its_last_run_was():
    told = NEWS.model_copy(update={"ready": ((7, 0),)})
    view = of(service(7, slot(0, "released"))).model_copy(update={"service_reports": (told,)})
    assert slots(observed(GATEWAY, view), "starting") == {0}


def test_what_no_replica_is_there_for_waits_for_a_first_one():
    shown = Gateway(
        GATEWAY.routes, {"triton1": Backend(2, 0, (server(0, ServerMode.DRAIN),))}, True
    )
    said = printed_text(show_services.service_details(observed(shown)))
    assert "1 in flight, 1 waiting for a first replica" in said


def test_a_replica_without_a_line_of_the_gateway_starts():
    earlier_run = Server("10.0.0.1", 20001, ServerMode.MAINT, up=False, in_flight=0, queued=0)
    lines = (server(0, ServerMode.MAINT), earlier_run, server(2, ServerMode.READY))
    found = observed(Gateway(GATEWAY.routes, {"triton1": Backend(0, 0, lines)}, complete=True))
    assert slots(found, "ready") == {2}
    assert slots(found, "draining") == {0, 5}
    assert slots(found, "starting") == {1, 3, 4}


OLD = service(5, slot(1, "running"), slot(4, "held"))
NEW = service(12, slot(0, "running"), slot(3, "held"))


def test_generations_are_one_service():
    found = observed(view=of(OLD, NEW))
    assert (found.array_job_id, found.older) == (12, (5,))
    assert [(one.array_job_id, one.slot) for one in found.in_state("ready")] == [(12, 0)]
    assert [(one.array_job_id, one.slot) for one in found.in_state("draining")] == [(5, 1)]
    assert [one.array_job_id for one in found.every_slot if one.is_outdated] == [5, 5]
    said = printed_text(show_services.service_details(found))
    assert "vision/chat (array job 12, replaces 5)" in said
    assert "1 outdated; each ends when a new one serves" in said
    assert console.plain(found)["slots"] == {
        "ready": [0],
        "starting": [],
        "draining": [],
        "held": [3],
        "gone": [],
    }


def test_a_restart_makes_outdated_what_started_before():
    order = ServiceOrder(restart_s=50.7)
    seen = service(7, slot(0, "running", start_s=49), slot(1, "running", start_s=50), order=order)
    found = observed(view=of(seen))
    assert [one.slot for one in found.every_slot if one.is_outdated] == [0]


def test_an_order_to_scale_is_shown():
    seen = service(7, slot(0, "held"), order=ServiceOrder(min_replicas=2, max_replicas=3))
    found = observed(view=of(seen))
    assert (found.min_replicas, found.max_replicas, found.is_scaled) == (2, 3, True)
    assert "1g.10gb, 2 to 3 as set by service scale" in printed_text(
        show_services.service_details(found)
    )


def test_an_ordered_end_is_shown():
    seen = service(7, slot(0, "running"), order=ServiceOrder(delete_s=1.0))
    assert "its owner has deleted it" in printed_text(
        show_services.service_details(observed(view=of(seen)))
    )


def test_each_replica_tells_age_lease_and_why_it_must_end():
    leaves = {"ends_in_s": 90, "ends_why": "node n1 is drained", "is_borrowed": True}
    seen = service(
        7,
        slot(0, "running", start_s=100, time_left_s=900),
        slot(1, "running", start_s=100, time_left_s=90, **leaves),
        slot(2, "held", last_failure="out of memory"),
        slot(3, "released", reason="Priority"),
        slot(4, "held"),
        slot(5, "running", start_s=100, ends_in_s=WHEN_REPLACED_S, ends_why="node n1 goes"),
    )
    lines = printed_text(
        show_services.service_details(observed(view=of(seen, at_s=400.0)))
    ).splitlines()
    table = [" ".join(line.split()) for line in lines if line.strip().startswith("7_")]
    assert table == [
        "7_0 ready n1 5 min 15 min",
        "7_1 draining n1 5 min 90 s borrowed; ends in 90 s: node n1 is drained",
        "7_2 held – – out of memory",
        "7_3 starting – – Priority",
        "7_5 starting n1 5 min – ends once another replica serves: node n1 goes; log: 7_5 loads",
    ]


LOSS = "1 slot is lost for good; apply the service again to replace it"


def test_lost_slots_are_told_with_what_to_do():
    assert LOSS in printed_text(show_services.service_details(observed()))
    assert f"vision/chat: {LOSS}" in printed_text(show_services.services_overview([observed()]))
    assert console.plain(observed())["loss"] == LOSS
    kept = observed(view=of(SERVICE.model_copy(update={"slots": SERVICE.slots[:-1]})))
    assert "lost" not in printed_text(show_services.service_details(kept))
    assert "lost" not in printed_text(show_services.services_overview([kept]))


def test_load_address_and_quota():
    found = observed()
    assert (found.load, found.backlog, found.in_flight) == (Load(3, 6), 6, 3)
    assert found.url == "http://gw:8080/vision/chat"
    assert found.quota == TENANT


def test_without_the_gateway_load_is_unknown_not_zero():
    found = observed(None)
    assert (found.load, found.backlog, slots(found, "ready")) == (None, None, {0, 1, 2})


NEWS = a_report(
    in_flight=3,
    queued=4,
    rate_per_s=1.25,
    desired_replicas=4,
    reason="3 in flight + 4 waiting: 4",
    ready=((7, 0),),
    draining=((7, 1),),
)
TOLD = VIEW.model_copy(update={"service_reports": (NEWS,)})


def test_who_may_not_see_the_gateway_reads_what_the_launcher_has_told():
    found = observed(None, TOLD)
    assert (found.backlog, found.in_flight, found.report) == (4, 3, NEWS)
    assert [slots(found, state) for state in ("ready", "draining")] == [{0}, {1, 5}]
    assert slots(found, "starting") == {2, 3, 4}
    said = printed_text(show_services.service_details(found))
    assert "3 in flight, 4 waiting; 1.25 arrive per second" in said
    assert "4 replicas: 3 in flight + 4 waiting: 4" in said
    shown = console.plain(found)
    assert shown["backlog"] == 4
    keys = ("rate_per_s", "desired_replicas", "reason", "failed_starts", "next_start_s")
    told = [shown["report"][key] for key in keys]
    assert told == [1.25, 4, "3 in flight + 4 waiting: 4", 0, None]


def test_what_is_kept_warm_is_shown_in_slice_hours():
    days = (WarmDay("2026-11-30", 11_520_000, 41),)
    told = NEWS.model_copy(update={"warm_replicas": 2.0, "warm_days": days})
    found = observed(None, TOLD.model_copy(update={"service_reports": (told,)}))
    said = printed_text(show_services.service_details(found))
    assert "2 replicas now; 3.2 slice-hours on 2026-11-30 UTC" in said
    assert console.plain(found)["report"]["warm_days"] == [
        {"day": "2026-11-30", "millislice_s": 11_520_000, "spared": 41}
    ]
    assert "keep-warm" not in printed_text(show_services.service_details(observed(None, TOLD)))


def test_who_may_see_the_gateway_reads_the_requests_there():
    found = observed(GATEWAY, TOLD)
    assert (found.backlog, found.report, slots(found, "draining")) == (6, NEWS, {1, 5})


def test_without_a_route_nothing_is_ready():
    found = observed(Gateway({}, GATEWAY.backends, complete=True))
    assert (found.in_state("ready"), found.load) == ((), None)


def test_a_tenant_that_one_may_not_see_has_no_figures():
    found = observed(view=VIEW.model_copy(update={"tenants": ()}))
    assert found.quota is None


def test_json_has_the_same_facts():
    found = console.plain(observed())
    assert found["slots"] == {
        "ready": [0],
        "starting": [2, 3, 4],
        "draining": [1, 5],
        "held": [6, 7],
        "gone": [8],
    }
    assert (found["backlog"], found["in_flight"], found["service"]) == (6, 3, "vision/chat")


@pytest.mark.parametrize(
    "said",
    [
        "http://gw:8080/vision/chat/v2/...",
        "1 ready (0), 3 starting (2-4), 2 draining (1,5), 2 held (6-7), 1 gone (8)",
        "3 in flight, 6 waiting",
        "vision holds 3.5 of its nominal 4 slices",
        "quota: vision holds 4 of 4 slices",
    ],
)
def test_people_read_it(said: str):
    assert said in printed_text(show_services.service_details(observed()))


def test_people_read_what_they_may_not_see():
    assert "the launcher has not reported it yet" in printed_text(
        show_services.service_details(observed(None))
    )
    assert "–" in printed_text(show_services.services_overview([observed(None)]))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_list_fits_the_terminal_with_names_and_numbers_whole(width: int):
    said = printed_text(show_services.services_overview([observed()]), width)
    assert max(map(len, said.splitlines())) <= width
    whole = ("vision/chat", "ready", "starting", "backlog", "in flight")
    assert [word for word in whole if word not in said] == []
    assert "…" not in said
    assert "http://gw:8080/vision/chat" in said


READY_AT_GATEWAY = Gateway(
    {"vision/chat": "triton1"},
    {"triton1": Backend(0, 0, (server(0, ServerMode.READY),))},
    complete=True,
)
ASLEEP = service(12, slot(0, "held"))
ENDING = ServiceOrder(delete_s=1.0)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_list_shows_every_state_and_address_at_any_width(width: int):
    services = tuple(
        observed(READY_AT_GATEWAY, of(one))
        for one in (ASLEEP, service(8, slot(1, "released")), service(9, slot(0, "running")))
    )
    said = printed_text(show_services.services_overview(services), width)
    states = [word for word in said.split() if word in get_args(Condition)]
    assert [one for one in states if one != "ready"] == ["asleep", "waking"]
    assert states[-1] == "ready"
    assert said.count("http://gw:8080/vision/chat") == 3


@pytest.mark.parametrize(
    ("services", "report", "state"),
    [
        ((ASLEEP,), {}, "asleep"),
        ((ASLEEP,), {"desired_replicas": 1}, "waking"),
        ((service(12, slot(0, "released")),), {}, "waking"),
        # It was called asleep, as if its next request would wake it.
        ((ASLEEP,), {"is_unpaid": True}, "unpaid"),
        ((service(12, slot(0, "released")),), {"is_unpaid": True}, "unpaid"),
        ((ASLEEP,), {"is_unpaid": True, "failed_starts": 1}, "failing"),
        ((service(12, slot(0, "running")),), {}, "ready"),
        ((service(12, slot(0, "running")),), {"failed_starts": 1}, "ready"),
        ((ASLEEP,), {"failed_starts": 1}, "failing"),
        ((service(5, slot(0, "running")), ASLEEP), {"failed_starts": 1}, "failing"),
        ((service(5, slot(0, "running")), ASLEEP), {}, "rolling"),
        ((service(12, slot(0, "running"), order=ENDING),), {}, "ending"),
    ],
)
def test_one_word_for_a_service(
    services: tuple[ServiceView, ...], report: dict[str, int], state: str
):
    news = NEWS.model_copy(update={"desired_replicas": 0, "failed_starts": 0} | report)
    view = of(*services).model_copy(update={"service_reports": (news,)})
    found = observed(READY_AT_GATEWAY, view)
    assert found.state == console.plain(found)["state"] == state
    said = " ".join(printed_text(show_services.service_details(found)).split())
    assert f" state {state} address " in said


def test_a_service_without_an_address_is_called_so():
    elsewhere = Gateway({}, READY_AT_GATEWAY.backends, complete=True)
    assert observed(elsewhere, of(ASLEEP)).state == "no address"
    unrouted = NEWS.model_copy(update={"is_routed": False})
    told = of(ASLEEP).model_copy(update={"service_reports": (unrouted,)})
    assert observed(None, told).state == "no address"
    assert observed(None, of(ASLEEP)).state == "no address"
    followed = ASLEEP.model_copy(update={"is_followed": True})
    assert observed(None, of(followed)).state == "asleep"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_details_fit_the_terminal_with_replicas_whole(width: int):
    said = printed_text(show_services.service_details(observed()), width)
    assert max(map(len, said.splitlines())) <= width
    assert all(f"7_{index}" in said for index in range(6))
    assert "…" not in said


def test_one_slice_is_not_slices():
    tenants = (TENANT.model_copy(update={"nominal_millislices": 1000}),)
    one = observed(view=VIEW.model_copy(update={"tenants": tenants}))
    lines = [
        line.rstrip() for line in printed_text(show_services.service_details(one)).splitlines()
    ]
    assert "quota     vision holds 3.5 of its nominal 1 slice" in lines


def test_how_well_it_answers_is_shown_against_its_objective():
    quality = ServiceQuality(
        span_s=420,
        answered=1234,
        p50_ms=12.0,
        p95_ms=1500.0,
        objective_met_share=0.991,
        errors=3,
        unanswered=2,
        cold_starts=1,
    )
    told = a_report(reason="why", quality=quality)
    directed = SERVICE.model_copy(update={"directives": {"p95_ms": "800"}})
    view = of(directed).model_copy(update={"service_reports": (told,)})
    one = observed(view=view)
    said = " ".join(printed_text(show_services.service_details(one), 200).split())
    assert "p50 12 ms, p95 1.5 s (objective: p95_ms 800, 99.1 % in time)" in said
    assert "1,234 answered, 3 errors, 2 unanswered, 1 cold start in the last 7 min" in said
    shown = console.plain(one)
    assert (shown["objective"], shown["report"]["quality"]) == ("p95_ms 800", quality.model_dump())
    listed = printed_text(show_services.services_overview([one]), 250)
    assert [word for word in ("12 ms", "1.5 s", "99.1 %", "in time") if word not in listed] == []
    single = quality.model_copy(update={"answered": 1, "p50_ms": 1500.0})
    told = told.model_copy(update={"quality": single})
    alone = observed(view=view.model_copy(update={"service_reports": (told,)}))
    said = " ".join(printed_text(show_services.service_details(alone), 200).split())
    assert "answers after 1.5 s (objective: p95_ms 800, 99.1 % in time); 1 answered," in said
    unknown = console.plain(observed())
    assert (unknown["objective"], unknown["report"]) == (None, None)
    json_checker.check("service list", [shown, unknown])
    cut = {**shown["report"], "quality": {"span_s": 420}}
    with pytest.raises(AssertionError, match="quality"):
        json_checker.check("service list", [{**shown, "report": cut}])


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"running": 1, "waiting": 1}, "they work on 1 request, 1 more waits in them slice"),
        (
            {
                "running": 1200,
                "waiting": 0,
                "kv_cache_share": 0.987,
                "preemptions": 3,
                "prefix_cache_hit_share": 0.4,
            },
            (
                "they work on 1,200 requests, 0 more wait in them; KV cache 98.7 % in use where it"
                " is fullest; requests set back 3 times since it was full; 40.0 % of the prompts'"
                " tokens found in it slice"
            ),
        ),
    ],
)
def test_what_servers_say_of_themselves_is_shown(load: dict[str, Any], said: str):
    servers = ReplicaLoad(**load)
    told = NEWS.model_copy(update={"engine_load": servers})
    one = observed(view=of(SERVICE).model_copy(update={"service_reports": (told,)}))
    shown = " ".join(printed_text(show_services.service_details(one), 400).split())
    assert f"engines {said}" in shown
    found = console.plain(one)
    assert found["report"]["engine_load"] == servers.model_dump()
    json_checker.check("service list", [found])
    none = console.plain(observed(view=of(SERVICE).model_copy(update={"service_reports": (NEWS,)})))
    assert none["report"]["engine_load"] is None


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({}, "not timed yet (objective: ttft_ms 500, tpot_ms 50)"),
        (
            {"ttft_ms": 120.0, "tpot_ms": 20.5},
            "the first after 120 ms in a replica, then one each 20.5 ms, on average (objective:",
        ),
        (
            {"ttft_ms": 120.0, "ttft_p95_ms": 1500.0, "tpot_ms": 20.5},
            "the first after 120 ms (95 % within 1.5 s) in a replica, then one each 20.5 ms, on",
        ),
    ],
)
def test_what_a_replica_carries_and_its_tokens_are_shown(times: dict[str, float], said: str):
    told = NEWS.model_copy(update={"concurrency": 6, "is_concurrency_learnt": True, **times})
    directed = SERVICE.model_copy(update={"directives": {"ttft_ms": "500", "tpot_ms": "50"}})
    one = observed(view=of(directed).model_copy(update={"service_reports": (told,)}))
    shown = " ".join(printed_text(show_services.service_details(one), 200).split())
    assert "each replica 6 requests at a time now, learnt from how long requests take" in shown
    assert f"tokens {said}" in shown
    found = console.plain(one)
    json_checker.check("service list", [found])
    report = found["report"]
    assert (report["concurrency"], report["is_concurrency_learnt"]) == (6, True)
    names = ("ttft_ms", "ttft_p95_ms", "tpot_ms")
    assert [report.get(name) for name in names] == [times.get(name) for name in names]
    assert report["concurrency_source"] == ""
    other = told.model_copy(update={"concurrency_source": "learnt by service talk"})
    one = observed(view=of(directed).model_copy(update={"service_reports": (other,)}))
    shown = " ".join(printed_text(show_services.service_details(one), 200).split())
    assert "at a time now, learnt by service talk, until its own requests say more" in shown
    assert console.plain(one)["report"]["concurrency_source"] == "learnt by service talk"
    fixed = told.model_copy(update={"concurrency": 1, "is_concurrency_learnt": False})
    plain = observed(view=of(SERVICE).model_copy(update={"service_reports": (fixed,)}))
    shown = " ".join(printed_text(show_services.service_details(plain), 200).split())
    assert "each replica 1 request at a time" in shown
    assert "learnt" not in shown
    assert "tokens" not in shown


def test_the_quota_is_the_limit_once_it_is_known():
    tenants = (TENANT.model_copy(update={"limit_millislices": 6000}),)
    one = observed(view=VIEW.model_copy(update={"tenants": tenants}))
    said = printed_text(show_services.service_details(one))
    assert "vision holds 3.5 of its limit of 6 slices; nominal 4" in said


def test_the_schema_names_every_key():
    rows = {row.key: console.plain(row) for row in show_file.schema_rows()}
    assert rows["name"]["required"]
    assert rows["max_replicas"]["default"] == 1
    assert rows["need_gib"]["type"] == "number"
    assert rows["environment"]["type"] == "table"
    assert all(row["meaning"] for row in rows.values())


def test_replicas_that_load_other_adapters_are_not_outdated_and_what_they_have_is_shown():
    order = {"adapters": "legal=x"}
    old = service(5, slot(0, "running")).model_copy(update={"directives": order})
    new = service(12, slot(0, "held")).model_copy(update={"directives": {"adapters": "tax=y"}})
    adapter = AdapterReport(model="chat:tax", requests=3, loaded=0, replicas=1, why="too large")
    report = a_report(reason="1 wanted", ready=((5, 0),), adapters=(adapter,))
    seen = ViewAnswer(
        observed_s=1.0, complete=True, services=(old, new), tenants=(), service_reports=(report,)
    )
    (found,) = join(seen, None, "http://g", last_line=lambda _view, _slot: "")
    assert (found.state, found.outdated) == ("ready", ())
    assert [one.array_job_id for one in found.ready] == [5]
    said = console.plain(found)
    assert said["report"]["adapters"] == [
        {"model": "chat:tax", "requests": 3, "loaded": 0, "replicas": 1, "why": "too large"}
    ]
    out = Console(width=120, record=True)
    out.print(show_services.service_details(found))
    assert "chat:tax: 3 requests, loaded by 0 of 1 replicas; refused: too large" in (
        out.export_text()
    )
