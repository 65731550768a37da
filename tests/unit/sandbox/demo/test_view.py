from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from builders.service_views import a_tenant_view
from guard import preparing
from rich.console import Console, RenderableType

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.services.overview import ReplicaView, ServiceObservation
from slicewise.sandbox.demo.live import Display, Scene, picture, sparkline
from slicewise.sandbox.demo.observe import service_states
from slicewise.sandbox.demo.record import (
    Acts,
    BatchJob,
    Chat,
    LedgerView,
    LoanChange,
    Recording,
    Repartition,
    Replicas,
    RequestRecord,
    Sample,
    ServiceState,
    TaskRun,
)
from slicewise.sandbox.demo.report import build
from slicewise.sandbox.demo.summary import summary

STATE = ServiceState("vision/captions", 7, Replicas(3, 1, 0, 4), 4000, 5000)
SAMPLE = Sample(30.0, STATE, 5, 420.0, 1900.0)
SCENE = Scene("replaying", 30.0, 52.4, (SAMPLE,), (1.0, 2.0, 4.0), 512, 0)
CHAT = RequestRecord("guest/talk", 10.0, 10.0, 2.5)
RESTS = ServiceState("guest/talk", 0, Replicas(held=1), 0, 8000)
RECORDING = Recording(
    requests=(RequestRecord("vision/captions", 1.0, 1.0, 0.2), CHAT),
    samples=(SAMPLE, Sample(30.0, RESTS, 0, None, None)),
    wakes=(),
    refusal=Refusal("SW-QUOTA-NONE", "guest has [no] quota."),
    ledger=LedgerView(0, {"vision": 1500}),
    sacct_millislice_s_by_tenant={"vision": 1500},
    duration_s=30.0,
    loans=(LoanChange(10.0, "nlp", "vision", 2000), LoanChange(20.0, "nlp", "vision", 0)),
    acts=Acts(
        (
            BatchJob(9, "carol", "guest", "3g.40gb", -2.0, 7.0, None),
            BatchJob(10, "bob", "nlp", "1g.10gb", 4.0),
        ),
        (Repartition("gpu01", "1g.10gb@0,1g.10gb@1", "3g.40gb@4", "done", 1.0, 12.0),),
        (TaskRun("26_1", 12.0, 15.0, gave_way=True), TaskRun("26_1", 20.0, None)),
    ),
    chats=(Chat(CHAT, 2.25, 100, 0), Chat(CHAT, None, 0, 1)),
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
    shape=ReplicaShape("1g.10gb"),
    min_replicas=0,
    max_replicas=8,
    is_scaled=False,
    is_ending=False,
    load=Load(in_flight=2, queued=4, held=5),
    report=None,
    every_slot=(
        *(ReplicaView(1, slot, "ready") for slot in range(3)),
        ReplicaView(1, 3, "starting"),
        *(ReplicaView(1, slot, "held") for slot in range(4, 8)),
    ),
    objective="",
    quota=a_tenant_view(4000, nominal_millislices=5000),
    note="",
)


def test_an_observation_is_taken_over() -> None:
    waiting = replace(STATE, backlog=9)
    assert service_states((OBSERVED,)) == (waiting,)


def test_what_holds_gpus_is_told_by_quota_from_what_waits_for_them() -> None:
    replicas = (
        ReplicaView(1, 0, "ready", "gpu01"),
        ReplicaView(1, 1, "ready", "gpu01", is_borrowed=True),
        ReplicaView(1, 2, "starting", "gpu02", is_borrowed=True),
        ReplicaView(1, 3, "starting", is_borrowed=True),
        ReplicaView(1, 4, "draining", "gpu02"),
        ReplicaView(1, 5, "held"),
    )
    (state,) = service_states((replace(OBSERVED, every_slot=replicas),))
    expected = Replicas(2, 2, 1, 1, own=2, borrowed=2, borrowed_ready=1)
    assert state.replicas == expected
    assert expected.own_not_ready == 1


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
    assert titles == "service ready loan start drain backlog p50 ms p95 ms slices of quota"
    assert {"vision/captions", "420", "1900"} <= set(lines[3].split())
    assert "4 of 5" in lines[3]


def test_the_picture_says_what_happens_beside_the_load_in_one_line() -> None:
    news = "bob's batch jobs take slices back " * 4
    lines = text_of(picture(replace(SCENE, news=news)), width=80).splitlines()
    (line,) = [line for line in lines if "bob's" in line]
    assert "…" in line


def test_news_are_a_line_where_there_is_no_terminal() -> None:
    file = StringIO()
    with Display(Console(file=file, force_terminal=False, width=40)) as display:
        display.show(replace(SCENE, elapsed_s=1.0))
        display.show(replace(SCENE, elapsed_s=2.0, news="a GPU is repartitioned"))
    assert "replaying; a GPU is repartitioned" in file.getvalue().splitlines()[1]


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
    assert text.lstrip().startswith("95 % of ")
    for word in (
        "2 (0 to wake services)",
        "2 by the openai client, first token after 2.2 s, then -; 100 tokens, failed 0",
        "guest has [no] quota.",
        "replicas at the end: 4",
        "debits and credits are equal",
        "asked for a 3g.40gb, waited 9 s, ran",
        "asked for a 1g.10gb and did not start",
        "gpu01 in 11 s: 2 × 1g.10gb became 1 × 3g.40gb",
        "1.500",
        "0.00%",
    ):
        assert word in text, word


def test_a_report_without_chats_says_so() -> None:
    assert "none was asked for" in text_of(summary(build(replace(RECORDING, chats=()))))


def test_the_plot_is_a_png_of_readme_width(tmp_path: Path) -> None:
    # Not above: with it comes matplotlib, half a second of each process that collects the tests.
    # On a machine where it is new, it asks a program for the fonts.
    with preparing():
        from slicewise.sandbox.demo.plot import save

    path = tmp_path / "new" / "demo.png"
    save(RECORDING, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 1200 <= int.from_bytes(data[16:20], "big") <= 2000


@pytest.mark.parametrize(
    ("t_s", "vision", "nlp"), [(9, 0, 0), (10, 2000, -2000), (19, 2000, -2000), (20, 0, 0)]
)
def test_what_is_lent_at_a_time(t_s: float, vision: int, nlp: int) -> None:
    with preparing():
        from slicewise.sandbox.demo.plot import lent_to

    assert lent_to("vision", RECORDING.loans, t_s) == vision
    assert lent_to("nlp", RECORDING.loans, t_s) == nlp
