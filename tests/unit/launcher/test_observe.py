"""What people see of a service: slots by state, load, and what they may not see."""

import pytest
from rich.console import Console

from cluster.wire import ServiceView, SlotView, TenantView, ViewAnswer
from launcher import show
from launcher.decide.gateway import Backend, Gateway, Load, Mode, Server
from launcher.observe import ServiceObservation, join


def slot(index: int, state: str) -> SlotView:
    values: dict[str, object] = {"index": index, "state": state}
    if state == "running":
        values |= {"job_id": 9, "address": "10.0.0.1", "ports": (21001 + index,), "start_s": 1}
    return SlotView.model_validate(values)


STATES = ("running", "running", "running", "starting", "released", "ending", "held", "held", "gone")
SERVICE = ServiceView(
    array_job_id=7,
    tenant="vision",
    name="chat",
    user="alice",
    submit_s=0,
    directives={"min_replicas": "1"},
    profile="1g.10gb",
    cost_millislices=1000,
    slots=tuple(slot(index, state) for index, state in enumerate(STATES)),
    note="quota: vision holds 4 of 4 slices",
)
TENANT = TenantView(name="vision", nominal_millislices=4000, used_millislices=3500)
VIEW = ViewAnswer(observed_s=1.0, complete=True, services=(SERVICE,), tenants=(TENANT,))


def server(index: int, mode: Mode, *, up: bool = True) -> Server:
    return Server("10.0.0.1", 21001 + index, mode, up=up, in_flight=1, queued=0)


GATEWAY = Gateway(
    {"vision/chat": "pool1"},
    {
        "pool1": Backend(
            9, 4, (server(0, Mode.READY), server(1, Mode.DRAIN), server(2, Mode.READY, up=False))
        )
    },
    complete=True,
)


def observed(gateway: Gateway | None = GATEWAY, view: ViewAnswer = VIEW) -> ServiceObservation:
    return join(view, gateway, "http://gw:8080/")[0]


def test_slots_by_what_they_do():
    found = observed()
    assert (found.ready, found.draining, found.starting) == ({0}, {1, 5}, {2, 3, 4})
    assert (found.held, found.gone) == ({6, 7}, {8})


def test_what_was_drained_is_told_from_what_starts():
    earlier_run = Server("10.0.0.1", 20001, Mode.MAINT, up=False, in_flight=0, queued=0)
    lines = (server(0, Mode.MAINT), earlier_run, server(2, Mode.READY))
    found = observed(Gateway(GATEWAY.routes, {"pool1": Backend(0, 0, lines)}, complete=True))
    assert (found.ready, found.draining, found.starting) == ({2}, {0, 5}, {1, 3, 4})


LOSS = "1 slot is lost for good; delete and apply the service to get it back"


def test_lost_slots_are_told_with_what_to_do():
    assert LOSS in printed(show.service_details(observed()))
    assert f"vision/chat: {LOSS}" in printed(show.services_overview([observed()]))
    assert show.as_json(observed())["loss"] == LOSS
    whole = SERVICE.model_copy(update={"slots": SERVICE.slots[:-1]})
    kept = observed(view=VIEW.model_copy(update={"services": (whole,)}))
    assert "lost" not in printed(show.service_details(kept))
    assert "lost" not in printed(show.services_overview([kept]))


def test_load_address_and_quota():
    found = observed()
    assert (found.load, found.backlog, found.in_flight) == (Load(3, 4, 2), 6, 3)
    assert found.url == "http://gw:8080/vision/chat"
    assert (found.used_millislices, found.nominal_millislices) == (3500, 4000)


def test_without_the_gateway_load_is_unknown_not_zero():
    found = observed(None)
    assert (found.load, found.backlog, found.ready) == (None, None, {0, 1, 2})


def test_without_a_route_nothing_is_ready():
    found = observed(Gateway({}, GATEWAY.backends, complete=True))
    assert (found.ready, found.load) == (frozenset(), None)


def test_a_tenant_that_one_may_not_see_has_no_figures():
    found = observed(view=VIEW.model_copy(update={"tenants": ()}))
    assert (found.used_millislices, found.nominal_millislices) == (None, None)


def test_json_has_the_same_facts():
    found = show.as_json(observed())
    assert found["slots"] == {
        "ready": [0],
        "starting": [2, 3, 4],
        "draining": [1, 5],
        "held": [6, 7],
        "gone": [8],
    }
    assert (found["backlog"], found["in_flight"], found["service"]) == (6, 3, "vision/chat")


def printed(value: object, width: int = 200) -> str:
    console = Console(width=width, record=True)
    with console.capture() as capture:
        console.print(value)
    return capture.get()


@pytest.mark.parametrize(
    "said",
    [
        "http://gw:8080/vision/chat/v2/...",
        "1 ready (0), 3 starting (2-4), 2 draining (1,5), 2 held (6-7), 1 gone (8)",
        "3 in flight, 4 queued, 2 held for a first replica",
        "vision holds 3.5 of 4 slices",
        "quota: vision holds 4 of 4 slices",
    ],
)
def test_people_read_it(said: str):
    assert said in printed(show.service_details(observed()))


def test_people_read_what_they_may_not_see():
    assert "not visible to you" in printed(show.service_details(observed(None)))
    assert "–" in printed(show.services_overview([observed(None)]))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_list_fits_the_terminal_with_names_and_numbers_whole(width: int):
    said = printed(show.services_overview([observed()]), width)
    assert max(map(len, said.splitlines())) <= width
    whole = ("vision/chat", "ready", "starting", "backlog", "in flight")
    assert [word for word in whole if word not in said] == []
    assert "…" not in said
    assert ("http://gw:8080/vision/chat" in said) == (width >= 120)


def test_one_slice_is_not_slices():
    tenants = (TENANT.model_copy(update={"nominal_millislices": 1000}),)
    one = observed(view=VIEW.model_copy(update={"tenants": tenants}))
    lines = [line.rstrip() for line in printed(show.service_details(one)).splitlines()]
    assert "quota     vision holds 3.5 of 1 slice" in lines


def test_the_schema_names_every_key():
    rows = {row["key"]: row for row in show.schema_rows()}
    assert rows["name"]["required"]
    assert rows["max_replicas"]["default"] == 1
    assert rows["need_gib"]["type"] == "number"
    assert all(row["meaning"] for row in rows.values())
