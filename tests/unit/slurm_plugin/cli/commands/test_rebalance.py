"""Tests what slicewise rebalance prints, and its exit codes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from printed_text import printed_text
from stand_ins.daemon_in_process import answer_from
from stand_ins.rebalance_world import STAGES, RebalanceLedger, Story
from stand_ins.repartition_world import Killed
from stand_ins.scripted import DOWN, ScriptedSlurm, sync_of
from typer.testing import CliRunner, Result

from slicewise.cluster.language.rebalances import StepName, StepOutcome, StepRecord
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.cli.commands import rebalance as rebalance_cli
from slicewise.slurm_plugin.cli.commands import rebalance_run
from slicewise.slurm_plugin.cli.views.rebalances import step_notes, steps_table
from slicewise.slurm_plugin.rebalance.site_look import one_line

pytestmark = pytest.mark.usefixtures("clock")

STEPS = [str(step) for step in StepName]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    told = Story()

    @contextmanager
    def opened(_: object) -> Iterator[RebalanceLedger]:
        yield told.ledger

    for module in (rebalance_cli, rebalance_run):
        monkeypatch.setattr(module, "load_settings", lambda: told.configured)
    monkeypatch.setattr(rebalance_run, "opened_ledger", opened)
    monkeypatch.setattr(rebalance_run, "_site", lambda *_: told.site())
    slurm = ScriptedSlurm()
    reads = Reads(told.configured, slurm, told.ledger, sync_of(slurm))
    answer_from(monkeypatch, reads.handlers())
    with told.clock():
        yield told


def rebalance(*words: str) -> Result:
    return CliRunner().invoke(rebalance_cli.rebalance_app, words, catch_exceptions=False)


def rows(shown: str) -> list[str]:
    """The first word of each row below the heading; notes begin with ``step:``."""
    words = [line.split()[0] for line in shown.splitlines()[1:]]
    return [word for word in words if not word.endswith(":")]


def test_a_run_prints_a_row_for_each_step(story: Story) -> None:
    shown = rebalance()
    assert shown.exit_code == 0
    assert rows(shown.stdout) == STEPS
    assert "vision lends nlp 4 slices, 0 before" in shown.stdout
    assert "and 4 more" in shown.stdout


def test_what_is_done_is_no_news_for_cron(story: Story) -> None:
    shown = rebalance("--quiet")
    assert (shown.exit_code, shown.output) == (0, "")
    assert len(story.ledger.runs) == 1


def test_what_is_not_done_is(story: Story) -> None:
    story.world.failure = DOWN
    shown = rebalance("--quiet")
    assert shown.exit_code == 1
    assert rows(shown.stdout) == STEPS
    assert shown.stdout.count("SW-SLURM-DOWN") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "head, process 4711"), (("--json",), "head, process 4711"), (("--quiet",), "")],
)
def test_while_another_run_is_under_way_it_is_tried_later(
    story: Story, words: tuple[str, ...], said: str
) -> None:
    story.ledger.is_free = False
    shown = rebalance(*words)
    assert shown.exit_code == 75
    assert said in shown.output
    assert bool(said) == bool(shown.output)
    assert story.ledger.runs == {}


def test_a_run_that_hangs_does_not_keep_cron_silent_for_ever(story: Story) -> None:
    run_id = story.ledger.rebalances.open("root", "head")
    story.ledger.is_free = False
    for age_s, said in ((3000, ""), (4000, "head, process 4711")):
        begun_s = story.world.now_s - age_s
        story.ledger.runs[run_id] = replace(story.ledger.runs[run_id], started_s=begun_s)
        shown = rebalance("--quiet")
        assert shown.exit_code == 75
        assert said in shown.stderr
        assert bool(said) == bool(shown.output)


def test_json_has_all_of_it_and_show_and_history_have_the_same(story: Story) -> None:
    shown = json.loads(rebalance("--json").stdout)
    assert [one["step"] for one in shown["steps"]] == STEPS
    assert shown["steps"][0]["did"] == ["runs of nlp booked: 3"]
    assert json.loads(rebalance("show", "1", "--json").stdout) == shown
    assert json.loads(rebalance("history", "--json").stdout) == [shown]


def test_a_dry_run_writes_nothing_and_says_what_it_would(story: Story) -> None:
    before = story.state()
    shown = json.loads(rebalance("--dry-run", "--json").stdout)
    would = {one["step"]: one["would"] for one in shown["steps"]}
    assert would["reconcile"] == ["runs of nlp booked: 3"]
    assert would["roll"] == ["nlp: a period begins"]
    assert would["lend"] == ["vision lends nlp 4 slices, 0 before"]
    assert would["compile"]
    assert (story.state(), story.ledger.runs) == (before, {})
    assert rebalance("--dry-run").stdout.endswith("Nothing was done.\n")


def test_a_dry_run_that_can_not_decide_fails(story: Story) -> None:
    story.world.failure = DOWN
    shown = rebalance("--dry-run")
    assert shown.exit_code == 1
    assert "SW-SLURM-DOWN" in shown.stdout


def test_a_dry_run_after_a_run_would_do_nothing(story: Story) -> None:
    for stage in STAGES:
        story.world.at(stage)
        rebalance()
    shown = json.loads(rebalance("--dry-run", "--json").stdout)
    assert [one["step"] for one in shown["steps"] if one["would"]] == []


def test_history_has_what_was_done_and_what_was_not(story: Story) -> None:
    assert rebalance("history").stdout == "There were no runs yet.\n"
    rebalance("--quiet")
    story.world.failure = DOWN
    rebalance("--quiet")
    _, second, first = rebalance("history").stdout.splitlines()
    assert "reconcile 1, roll 1, lend 1, compile 7" in first
    assert second.split()[-2:] == ["–", "all"]
    assert "failed" in second


def test_a_killed_run_is_shown_with_the_step_that_was_under_way(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(story.ledger, "replace", dies)
        with pytest.raises(Killed):
            rebalance()
    rebalance()
    shown = rebalance("show", "1").stdout
    assert "abandoned" in shown
    last = shown.splitlines()[-1]
    assert last.split()[:2] == ["lend", "failed"]
    assert "in the middle of this step" in last


def test_a_long_reason_stands_below_the_table_on_a_line_of_its_own() -> None:
    warning = "TaskPlugin has no task/cgroup: each job can open all GPUs of its node. " * 3
    records = [
        StepRecord(StepName.COMPILE, StepOutcome.DONE, 0.0, 1.0, why=warning),
        StepRecord(StepName.PRIORITISE, StepOutcome.SKIPPED, 1.0, 1.0, why=warning),
        StepRecord(StepName.CUT, StepOutcome.DONE, 1.0, 2.0, why="no GPU waits"),
    ]
    table = printed_text(steps_table(records), 80, color_system=None)
    assert "TaskPlugin" not in table
    assert [line.rstrip().rsplit("  ", 1)[-1] for line in table.strip().splitlines()[-3:]] == [
        "below",
        "as above",
        "no GPU waits",
    ]
    assert list(step_notes(records)) == [f"compile: {warning}"]


def test_reasons_follow_each_other_as_sentences() -> None:
    assert one_line(["First.", "Second."]) == "First. Second."
    assert one_line(["refused: a", "waits: b"]) == "refused: a; waits: b"
    assert one_line(["First.", "refused: a"]) == "First. refused: a"
    assert one_line([]) == ""
