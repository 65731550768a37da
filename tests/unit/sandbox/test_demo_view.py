from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from cluster.errors import OutsideError, Refusal
from cluster.wire import ServiceView, SlotState, SlotView, TenantView, ViewAnswer
from launcher.decide.gateway import Backend, Gateway, Mode, Server
from sandbox.demo.live import Display, Scene, picture, sparkline
from sandbox.demo.observe import service_states
from sandbox.demo.plot import save
from sandbox.demo.record import (
    LedgerView,
    Recording,
    Replicas,
    RequestRecord,
    Sample,
    ServiceState,
)
from sandbox.demo.report import build
from sandbox.demo.summary import summary

STATE = ServiceState("vision/captions", 7, Replicas(3, 1, 0, 4), 4000, 5000)
SAMPLE = Sample(30.0, STATE, 5, 420.0, 1900.0)
SCENE = Scene("replaying", 30.0, 52.4, (SAMPLE,), (1.0, 2.0, 4.0), 512, 0)
RECORDING = Recording(
    requests=(RequestRecord("vision/captions", 1.0, 1.0, 0.2),),
    samples=(SAMPLE,),
    wakes=(),
    refusal=Refusal("SW-QUOTA-NONE", "guest has [no] quota."),
    ledger=LedgerView(0, {"vision": 1500}),
    sacct_millislice_s_by_tenant={"vision": 1500},
    duration_s=30.0,
)


def text_of(renderable: RenderableType) -> str:
    file = StringIO()
    Console(file=file, width=110).print(renderable)
    return file.getvalue()


def view(*slots: SlotView, complete: bool = True) -> ViewAnswer:
    service = ServiceView(
        array_job_id=1,
        tenant="vision",
        name="captions",
        user="alice",
        submit_s=0,
        directives={},
        profile="1g.10gb",
        cost_millislices=1000,
        slots=slots,
    )
    tenant = TenantView(name="vision", nominal_millislices=5000, used_millislices=3000)
    return ViewAnswer(observed_s=0, complete=complete, services=(service,), tenants=(tenant,))


def server(mode: Mode = Mode.MAINT, *, up: bool = False, in_flight: int = 0) -> Server:
    return Server("127.0.0.1", 1, mode, up=up, in_flight=in_flight, queued=0)


def gateway(*servers: Server, sessions: int = 0, queued: int = 0) -> Gateway:
    return Gateway({"vision/captions": "b1"}, {"b1": Backend(sessions, queued, servers)})


@pytest.mark.parametrize(
    ("state", "at_gateway", "expected"),
    [
        ("held", server(), Replicas(held=1)),
        ("released", server(), Replicas(starting=1)),
        ("starting", server(), Replicas(starting=1)),
        ("running", server(), Replicas(starting=1)),
        ("running", server(Mode.READY, up=False), Replicas(starting=1)),
        ("running", server(Mode.READY, up=True), Replicas(ready=1)),
        ("running", server(Mode.DRAIN, up=True), Replicas(draining=1)),
        ("ending", server(), Replicas(draining=1)),
        ("gone", server(), Replicas()),
    ],
)
def test_slot_and_server_together_say_what_a_replica_does(
    state: SlotState, at_gateway: Server, expected: Replicas
) -> None:
    (seen,) = service_states(view(SlotView(index=0, state=state)), gateway(at_gateway))
    assert seen.replicas == expected


def test_a_slot_beyond_the_gateway_s_servers_is_not_ready() -> None:
    (seen,) = service_states(view(SlotView(index=1, state="running")), gateway(server()))
    assert seen.replicas == Replicas(starting=1)


def test_backlog_and_quota_are_taken_over() -> None:
    busy = gateway(server(Mode.READY, up=True, in_flight=2), sessions=11, queued=4)
    (seen,) = service_states(view(), busy)
    # Eleven in all: two are worked on, four are queued, five are held.
    assert (seen.backlog, seen.used_millislices, seen.nominal_millislices) == (9, 3000, 5000)


def test_a_service_without_a_route_is_left_out() -> None:
    assert service_states(view(), Gateway({}, {})) == ()


def test_an_incomplete_view_is_no_observation() -> None:
    with pytest.raises(OutsideError):
        service_states(view(complete=False), gateway(server()))


@pytest.mark.parametrize(
    ("values", "expected"),
    [((), ""), ((0, 0), "▁▁"), ((0, 5, 10), "▁▅█"), ((-1, 1), "▁█")],
)
def test_sparkline(values: tuple[float, ...], expected: str) -> None:
    assert sparkline(values) == expected


def test_the_picture_shows_phase_time_left_service_and_quota() -> None:
    text = text_of(picture(SCENE))
    for word in ("replaying", "about 52 s left", "vision/captions", "4 of 5", "1900", "▃▅█"):
        assert word in text, word


def test_without_a_terminal_it_prints_at_new_phases_and_every_few_seconds() -> None:
    file = StringIO()
    with Display(Console(file=file, force_terminal=False, width=40)) as display:
        for elapsed_s, phase in ((0, "a"), (1, "a"), (2, "b"), (4, "b"), (7, "b")):
            display.show(Scene(phase, elapsed_s, None, (SAMPLE,), (), 0, 0))
    lines = file.getvalue().splitlines()
    assert [line.split("|")[0].split() for line in lines] == [
        ["0", "s", "a"],
        ["2", "s", "b"],
        ["7", "s", "b"],
    ]


def test_the_summary_shows_refusal_shortfalls_and_both_books() -> None:
    text = text_of(summary(build(RECORDING)))
    for word in ("guest has [no] quota.", "replicas_end is 4", "1.500", "0.00%"):
        assert word in text, word


def test_the_plot_is_a_png_of_readme_width(tmp_path: Path) -> None:
    path = tmp_path / "new" / "demo.png"
    save(RECORDING, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 1200 <= int.from_bytes(data[16:20], "big") <= 2000
