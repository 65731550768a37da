from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from cluster.language.errors import Refusal
from cluster.rpc.messages import TenantView
from launcher.gateway.types import Load
from launcher.services.overview import ReplicaView, ServiceObservation
from sandbox.demo.live import Display, Scene, picture, sparkline
from sandbox.demo.observe import service_states
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


def text_of(renderable: RenderableType, width: int = 110) -> str:
    file = StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


OBSERVED = ServiceObservation(
    array_job_id=1,
    older=(),
    tenant="vision",
    name="captions",
    user="alice",
    url="http://gateway/vision/captions",
    api="/v2",
    is_routed=True,
    profile="1g.10gb",
    min_replicas=0,
    max_replicas=8,
    is_scaled=False,
    is_ending=False,
    load=Load(in_flight=2, queued=4, held=5),
    report=None,
    replicas=(
        *(ReplicaView(1, slot, "ready") for slot in range(3)),
        ReplicaView(1, 3, "starting"),
        *(ReplicaView(1, slot, "held") for slot in range(4, 8)),
    ),
    objective="",
    quota=TenantView(
        name="vision",
        nominal_millislices=5000,
        in_use_millislices=4000,
        own_in_use_millislices=4000,
    ),
    note="",
)


def test_an_observation_is_taken_over() -> None:
    waiting = replace(STATE, backlog=9)
    assert service_states((OBSERVED,)) == (waiting,)


def test_a_service_without_a_route_is_left_out() -> None:
    assert service_states((replace(OBSERVED, load=None),)) == ()


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


def test_the_picture_fits_80_columns() -> None:
    # The phase as it reads in a replay's third minute.
    scene = replace(SCENE, phase="replaying 2562 trace requests, wakes not counted", elapsed_s=100)
    lines = text_of(picture(scene), width=80).splitlines()
    assert "about 52 s left" in lines[1]
    titles = " ".join(lines[2].strip("│ ").split())
    assert titles == "service ready start drain held backlog p50 ms p95 ms slices of quota"
    assert {"vision/captions", "420", "1900"} <= set(lines[3].split())
    assert "4 of 5" in lines[3]


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
    for word in (
        "1 (0 to wake services)",
        "guest has [no] quota.",
        "replicas_end is 4",
        "1.500",
        "0.00%",
    ):
        assert word in text, word


def test_the_plot_is_a_png_of_readme_width(tmp_path: Path) -> None:
    # Not above: with it comes matplotlib, half a second of each process that collects the tests.
    from sandbox.demo.plot import save

    path = tmp_path / "new" / "demo.png"
    save(RECORDING, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 1200 <= int.from_bytes(data[16:20], "big") <= 2000
