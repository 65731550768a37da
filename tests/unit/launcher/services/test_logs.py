"""Tests the replicas' logs: which are shown, how much of them, and how they are followed."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from builders.service_views import a_service, slots_in
from fault_world.virtual_time import WorldClock
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.rpc.messages import ServiceView, ViewAnswer, ViewRequest
from slicewise.launcher.cli import service_view
from slicewise.launcher.cli.service import service_app
from slicewise.launcher.services import logs
from slicewise.launcher.services.logs import (
    Chosen,
    Line,
    chosen_slots,
    followed_generation,
    last_line,
    last_lines,
    log_file,
    new_lines,
    offsets_now,
    why_it_failed,
)

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def _our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs the tests may be root, and alice no user here."""
    monkeypatch.setattr(logs, "as_user", lambda _: nullcontext())


def service(directory: Path | str, *states: str) -> ServiceView:
    return a_service(slots=slots_in(*states), directory=str(directory))


@pytest.fixture
def view(tmp_path: Path) -> ServiceView:
    """Slots 0 and 2 have written; only slot 2 runs, slot 3 has just started."""
    (tmp_path / "chat.logs").mkdir()
    (tmp_path / "chat.logs" / "814_0.log").write_text("old\n")
    (tmp_path / "chat.logs" / "814_2.log").write_text("one\ntwo\nthree")
    os.utime(tmp_path / "chat.logs" / "814_0.log", (1, 1))
    return service(tmp_path, "held", "held", "running", "starting")


def test_slots_under_way_are_shown_else_the_last_that_wrote(tmp_path: Path, view: ServiceView):
    assert chosen_slots(view, None) == (2,)
    assert chosen_slots(service(tmp_path, "held", "held", "held"), None) == (2,)
    os.utime(tmp_path / "chat.logs" / "814_2.log", (0, 0))
    assert chosen_slots(service(tmp_path, "held", "held", "held"), None) == (0,)
    assert chosen_slots(view, 0) == (0,)


def test_replicas_that_have_only_loaded_other_adapters_have_the_logs_of_their_generation():
    def one(array: int, state: str, **directives: str) -> ServiceView:
        return a_service(array_job_id=array, slots=slots_in(state), directives=directives)

    new, old = one(9, "held", adapters="tax=y"), one(7, "running", adapters="legal=x")
    other = one(5, "running", adapters="legal=x", model="other")
    assert followed_generation((new, old, other)) == old
    assert followed_generation((new, other)) == new
    started = one(9, "running", adapters="tax=y")
    assert followed_generation((started, old)) == started


def code_of(call) -> str:
    with pytest.raises(InvalidInputError) as caught:
        call()
    return caught.value.refusal.code


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_that_is_not_there_is_refused(view: ServiceView, slot: int):
    assert code_of(lambda: chosen_slots(view, slot)) == "SW-NAME-UNKNOWN"


def test_no_log_at_all_says_where_they_would_be(tmp_path: Path):
    with pytest.raises(InvalidInputError, match=r"chat.logs/814_SLOT.log in /.*belong to alice"):
        chosen_slots(service(tmp_path, "held"), None)


def test_a_log_that_can_t_be_read_says_why(view: ServiceView):
    with pytest.raises(InvalidInputError, match="slot 1: No such file or directory"):
        last_lines(view, (1,), Chosen(5))


@pytest.mark.parametrize(
    ("count", "texts"),
    [(0, []), (1, ["three"]), (2, ["two", "three"]), (9, ["one", "two", "three"])],
)
def test_the_last_lines(view: ServiceView, count: int, texts: list[str]):
    lines, reached = last_lines(view, (2,), Chosen(count))
    assert lines == tuple(Line(2, text) for text in texts)
    assert reached == {2: 13}


def test_long_logs_are_read_from_their_end(tmp_path: Path, view: ServiceView):
    every = [f"line {number}" for number in range(30_000)]
    log_file(view, 2).write_text("\n".join(every) + "\n")
    lines, _ = last_lines(view, (2,), Chosen(20_000))
    assert [line.line for line in lines] == every[-20_000:]


def test_what_a_terminal_would_obey_is_not_shown(view: ServiceView):
    log_file(view, 2).write_bytes(b"\x1b[2Jred\xff\tx\r\n")
    (line,), _ = last_lines(view, (2,), Chosen(5))
    assert line.line == "\ufffd[2Jred\ufffd\tx"


def test_colours_are_left_out(view: ServiceView):
    """Each log of Triton had two lines with them, of which U+FFFD and numbers were left."""
    log_file(view, 2).write_bytes(b"[\x1b[1;33mWARN\x1b[0;39m]  \x1b[33mevhtp.c:4050\x1b[m\n")
    (line,), _ = last_lines(view, (2,), Chosen(5))
    assert line.line == "[WARN]  evhtp.c:4050"


def test_new_lines_are_whole_and_come_once(view: ServiceView):
    read = offsets_now(view, range(4))
    with log_file(view, 2).open("a") as log:
        log.write(" and a half\nfour\nfi")
    log_file(view, 3).write_text("begins\n")
    lines, read = new_lines(view, read)
    assert lines == (Line(2, " and a half"), Line(2, "four"), Line(3, "begins"))
    lines, read = new_lines(view, read)
    assert lines == ()
    with log_file(view, 2).open("a") as log:
        log.write("ve\n")
    assert new_lines(view, read)[0] == (Line(2, "five"),)


def test_a_log_that_was_cut_is_read_from_its_beginning(view: ServiceView):
    read = offsets_now(view, (2,))
    log_file(view, 2).write_text("anew\n")
    assert new_lines(view, read)[0] == (Line(2, "anew"),)


@pytest.fixture
def seen(tmp_path: Path, view: ServiceView, monkeypatch: pytest.MonkeyPatch) -> ServiceView:
    (tmp_path / "slicewise.toml").write_text(
        '[cluster]\nname = "c"\npartitions = ["gpu"]\n[gpus."A100-80GB"]\ntypes = ["1g.10gb"]\n'
    )
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    older = view.model_copy(update={"array_job_id": 700})

    look = ViewAnswer(observed_s=1.0, complete=True, services=(older, view), tenants=())
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: look)
    return view


def run(*words: str) -> str:
    result = CliRunner().invoke(service_app, ("logs", "chat", *words), catch_exceptions=False)
    return result.stdout


def test_the_command_shows_the_newest_generation_s(seen: ServiceView):
    assert run() == "2 | one\n2 | two\n2 | three\n"
    assert run("--slot", "0") == "0 | old\n"
    assert run("-n", "1") == "2 | three\n"
    assert [json.loads(line) for line in run("-n", "1", "--json").splitlines()] == [
        {"slot": 2, "line": "three"}
    ]


def test_following_goes_on_with_every_slot_until_it_is_stopped(seen: ServiceView, monkeypatch):
    pauses = iter([(0, "late\n"), (2, " it\nmore\n")])

    def sleep(_seconds: float) -> None:
        try:
            slot, text = next(pauses)
        except StopIteration:
            raise KeyboardInterrupt from None
        with log_file(seen, slot).open("a") as log:
            log.write(text)

    monkeypatch.setattr(service_view.time, "sleep", sleep)
    assert run("-f", "-n", "1").splitlines() == ["2 | three", "0 | late", "2 |  it", "2 | more"]


def test_a_log_of_nobody_is_refused(seen: ServiceView):
    with pytest.raises(SlicewiseError, match="SW-NOTHING"):
        run("--slot", "3")


RUNS = """\
I1231 23:59:58.000001 17 server.cc:1] cut in the middle
2026-01-01T01:00:00+0100 chat.814.2 starting on gpu01 (10.0.0.1)
I0101 00:00:01.000001 17 server.cc:1] first
  of two lines
2026-01-01T00:10:00+0000 chat.814.2 starting on gpu01 (10.0.0.1)
I0101 00:10:01.000001 17 server.cc:1] second
"""
NEW_YEAR_S = 1_767_225_600


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Chosen(None, since_s=NEW_YEAR_S - 1), slice(1, None)),
        (Chosen(None, since_s=NEW_YEAR_S - 2), slice(0, None)),
        (Chosen(None, since_s=NEW_YEAR_S + 1), slice(2, None)),
        (Chosen(None, since_s=NEW_YEAR_S + 2), slice(4, None)),
        (Chosen(1, since_s=NEW_YEAR_S), slice(5, None)),
        (Chosen(None, since_s=NEW_YEAR_S + 602), slice(0, 0)),
        (Chosen(None, previous=True), slice(1, 4)),
        (Chosen(1, previous=True), slice(3, 4)),
        (Chosen(None, since_s=NEW_YEAR_S + 1, previous=True), slice(2, 4)),
        (Chosen(3), slice(3, None)),
    ],
)
@pytest.mark.parametrize("cut_at", [0, 1, 3, 6])
def test_lines_since_a_time_and_of_the_run_before(
    view: ServiceView, monkeypatch: pytest.MonkeyPatch, chosen: Chosen, expected: slice, cut_at: int
):
    """Triton's clock is UTC and names no year; the batch script may have cut the log off."""
    monkeypatch.setattr(
        "slicewise.cluster.runtime.wall_clock.time.time", lambda: NEW_YEAR_S + 3600.0
    )
    every = RUNS.splitlines(keepends=True)
    log = log_file(view, 2)
    log.write_text("".join(every[cut_at:]))
    log.with_name(f"{log.name}.1").write_text("".join(every[:cut_at]))
    lines, _ = last_lines(view, (2,), chosen)
    assert [line.line for line in lines] == RUNS.splitlines()[expected]


def test_a_slot_that_has_run_once_has_no_run_before(view: ServiceView):
    log_file(view, 2).write_text("".join(RUNS.splitlines(keepends=True)[4:]))
    assert last_lines(view, (2,), Chosen(None, previous=True))[0] == ()


def test_what_apply_has_put_into_a_directory_is_found_there(tmp_path: Path):
    seen = service(tmp_path, "running")
    place = tmp_path / "chat.logs"
    assert log_file(seen, 0) == place / "814_0.log"
    (tmp_path / "chat-814_0.log").write_text("by sbatch\n")
    assert log_file(seen, 0) == tmp_path / "chat-814_0.log"


def test_since_is_a_time_or_how_long_ago(seen: ServiceView, clock: WorldClock):
    clock.passed_s = 3 * 365 * 86_400  # November 2026.
    log_file(seen, 2).write_text(RUNS)
    assert run("--since", "2026-01-01T00:10:00+00:00").splitlines() == [
        f"2 | {line}" for line in RUNS.splitlines()[4:]
    ]
    for now in ("1s", "1min"):
        assert run("--since", now) == ""
    assert "starting on" in run("--since", "999999d", "--lines", "2")
    nothing = CliRunner().invoke(service_app, ["logs", "chat", "--since", "1s"]).stderr
    assert nothing == f"Nothing was written since 1s: {log_file(seen, 2)}\n"
    for wrong in (("--since", "tomorrow"), ("--previous", "--follow")):
        assert CliRunner().invoke(service_app, ["logs", "chat", *wrong]).exit_code == 2


FAILED = """\
2026-11-23T07:00:00+0000 chat.814.1 starting on gpu01 (10.0.0.1)
E1123 07:00:01.000001 17 model.cc:1] an earlier run
2026-11-23T07:10:00+0000 chat.814.1 starting on gpu01 (10.0.0.1)
I1123 07:10:01.000001 17 server.cc:1] a notice
+--------+--------+
| Model  | Status |
E1123 07:10:02.000001 17 model.cc:1] the secret\x1b[2J path
no such model

2026-11-23T07:10:03+0000 chat.814.1 Triton ended with 1
srun: error: gpu01: task 0: Exited with exit code 1
"""


def test_its_owner_is_told_why_a_slot_s_last_run_failed(view: ServiceView):
    log_file(view, 1).write_text(FAILED)
    assert why_it_failed(view, 1) == "the secret\ufffd[2J path no such model"
    log_file(view, 1).write_text("x" * 100_000 + "\n" + FAILED)
    assert why_it_failed(view, 1).endswith("no such model")
    assert why_it_failed(view, 3) == ""


def test_nobody_else_s_log_is_read_for_it(view: ServiceView, monkeypatch: pytest.MonkeyPatch):
    """Nor what its owner put in its place: a reader would wait for a pipe for ever."""
    log_file(view, 1).write_text(FAILED)
    own = os.geteuid()
    monkeypatch.setattr("slicewise.launcher.services.logs.os.geteuid", lambda: own + 1)
    assert why_it_failed(view, 1) == ""
    monkeypatch.undo()
    path = log_file(view, 3)
    os.mkfifo(path)
    assert why_it_failed(view, 3) == ""
    path.unlink()
    path.symlink_to(log_file(view, 1))
    assert why_it_failed(view, 3) == ""
    path.unlink()
    path.mkdir()
    assert why_it_failed(view, 3) == ""


STARTS = (
    "2026-01-01T10:00:00+0000 chat.814.1 starting on node1 (10.0.0.1)\n"
    "I0101 10:00:01.000001 17 server.cc:1] loading: llama\n"
)


def test_its_owner_is_told_what_a_replica_that_starts_has_written_last(view: ServiceView):
    assert last_line(view, 1) == ""
    log_file(view, 1).write_text(FAILED + STARTS)
    assert last_line(view, 1) == "loading: llama"
    log_file(view, 1).write_text(FAILED + STARTS.splitlines(keepends=True)[0])
    assert last_line(view, 1) == ""
    log_file(view, 1).unlink()
    log_file(view, 1).symlink_to(log_file(view, 2))
    log_file(view, 2).write_text(STARTS)
    assert (last_line(view, 1), last_line(view, 2)) == ("", "loading: llama")


def test_a_log_without_lines_is_not_taken_into_memory(tmp_path: Path, view: ServiceView):
    """Its user can make it as long as he likes without writing anything."""
    os.truncate(tmp_path / "chat.logs" / "814_2.log", 64 << 20)
    lines, read = last_lines(view, [2], Chosen(1))
    assert (len(lines), read) == (1, {2: 64 << 20})
    assert len(lines[0].line) <= 5 << 20
    found, read = new_lines(view, {2: 1 << 20})
    assert sum(len(line.line) for line in found) == 4 << 20
    assert read == {2: 5 << 20}


def test_no_reader_waits_for_what_is_no_file(tmp_path: Path, view: ServiceView):
    (tmp_path / "chat.logs" / "814_2.log").unlink()
    os.mkfifo(tmp_path / "chat.logs" / "814_2.log")
    with pytest.raises(InvalidInputError, match="slot 2: that is no file"):
        last_lines(view, [2], Chosen(1))
    assert new_lines(view, {2: 0}) == ((), {2: 0})
