"""Tests what becomes of a line of the ring until the daemon has booked it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from stand_ins.usage_books import DIGEST, RUN, Daemon, line, state

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.rpc.usage_messages import (
    RefusedRecord,
    UsagePostAnswer,
    UsagePostRequest,
)
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process import usage_journal
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.gateway.usage_lines import TokenSums

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def watch(daemon: Daemon, directory: Path, kept: KeptLines | None = None) -> UsageWatch:
    """Of a launcher that has just started and has had its first turn."""
    directory.mkdir(exist_ok=True)
    made = UsageWatch(daemon, UsageJournal(directory), kept)
    made.turned(state(DIGEST))
    return made


def hear(made: UsageWatch, lines: Sequence[str]) -> list[Any]:
    """Of which runs the engines have counted more."""
    return [run for text in lines for run in made.hear(text)]


async def post(made: UsageWatch) -> None:
    await made.write()
    await made.post()


async def test_a_line_is_booked_for_its_run(daemon: Daemon, tmp_path: Path):
    made = watch(daemon, tmp_path)
    run = ("nlp/chat", RUN)
    lines = ["held triton1", line(1), line(65), line(1)]
    assert hear(made, lines) == [run, run]
    await post(made)
    assert daemon.booked.keys() == {("gw-17-5", 1), ("gw-17-5", 65)}
    record = daemon.booked["gw-17-5", 65]
    assert (record.array_job_id, record.index, record.run_start_s) == RUN
    assert (record.payer, record.person, record.key_id) == ("nlp", "carol", "key1")
    assert (record.prompt_tokens, record.cached_prompt_tokens, record.output_tokens) == (9, 5, 7)
    assert (record.first_token_ms, record.outcome) == (200, "whole")
    assert (made.waiting, made.missed) == (0, 0)


async def test_while_the_file_can_not_be_read_there_is_the_ring(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "kept" / "lines"
    made = watch(daemon, tmp_path, KeptLines(file))
    file.mkdir()
    assert len(hear(made, [line(1), line(65)])) == 2
    with pytest.raises(OSError, match="directory"):
        made.hear()
    await post(made)
    assert len(daemon.booked) == 2


async def test_sums_are_those_since_they_were_taken_last(daemon: Daemon, tmp_path: Path):
    made = watch(daemon, tmp_path)
    hear(made, [line(1), line(65)])
    assert made.take_since() == {("nlp/chat", "nlp", "carol"): TokenSums(2, 18, 10, 14)}
    assert made.take_since() == {}


async def test_what_is_not_booked_waits_on_disk_for_the_next_launcher(
    daemon: Daemon, tmp_path: Path
):
    made = watch(daemon, tmp_path)
    daemon.is_away = True
    for number in (1, 65):
        hear(made, [line(number)])
        with pytest.raises(UnreachableError):
            await post(made)
    assert made.waiting == 1
    (file,) = (tmp_path / "usage").glob("0*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    daemon.is_away = False
    after = watch(daemon, tmp_path)
    await post(after)
    assert len(daemon.booked) == 2
    assert not list((tmp_path / "usage").glob("0*.json"))
    # It hears all that the ring still has, and has heard the first two.
    hear(after, [line(1), line(65), line(193)])
    await post(after)
    assert (len(daemon.booked), after.missed) == (3, 1)


async def test_a_batch_whose_answer_is_lost_is_posted_again(daemon: Daemon, tmp_path: Path):
    made = watch(daemon, tmp_path)
    hear(made, [line(1)])
    daemon.is_lost = True
    with pytest.raises(UnreachableError):
        await post(made)
    daemon.is_lost = False
    await post(made)
    assert (len(daemon.booked), made.waiting) == (1, 0)


async def test_a_record_that_is_refused_with_its_batch_keeps_no_other_back(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(usage_journal, "MOST_RECORDS", 50)
    made = watch(daemon, tmp_path)
    numbers = [1 + 64 * place for place in range(120)]
    daemon.poison = frozenset(numbers[70:71])
    hear(made, [line(number) for number in numbers])
    await made.write()
    for _ in range(10):
        with pytest.raises(InvalidInputError):
            await made.post()
    assert {number for _, number in daemon.booked} == {*numbers} - daemon.poison
    assert made.waiting == 1
    # Another version of the daemon takes it, from another launcher.
    daemon.poison = frozenset()
    after = watch(daemon, tmp_path)
    await after.post()
    assert {number for _, number in daemon.booked} == {*numbers}
    assert after.waiting == 0


async def test_a_line_waits_until_a_turn_says_whose_its_replica_was(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("slicewise.launcher.process.usage_watch.wall_s", lambda: 2.0)
    made = UsageWatch(daemon, UsageJournal(tmp_path))
    hear(made, [line(1)])
    await post(made)
    made.turned(state("0b" * 32))
    await post(made)
    assert not daemon.booked
    made.turned(state("0b" * 32, DIGEST))
    await post(made)
    assert daemon.booked["gw-17-5", 1].index == 1


async def test_of_a_run_that_nobody_knows_the_request_is_booked_all_the_same(
    daemon: Daemon, tmp_path: Path
):
    made = watch(daemon, tmp_path)
    hear(made, [line(1, "0b" * 32), line(65, "-")])
    await post(made)
    assert [record.array_job_id for record in daemon.booked.values()] == [None, None]


async def test_the_journal_is_bounded(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(usage_journal, "_MOST_BATCHES", 2)
    monkeypatch.setattr(usage_journal, "MOST_RECORDS", 3)
    made = watch(daemon, tmp_path)
    hear(made, [line(64 * place) for place in range(10)])
    daemon.is_away = True
    with pytest.raises(UnreachableError):
        await post(made)
    assert (made.waiting, made.missed) == (2, 4)
    daemon.is_away = False
    await post(made)
    assert len(daemon.booked) == 6


async def test_a_file_that_cant_be_read_is_set_aside(daemon: Daemon, tmp_path: Path):
    watch(daemon, tmp_path)
    (tmp_path / "usage" / "000000000007.json").write_text("{")
    made = watch(daemon, tmp_path)
    hear(made, [line(1)])
    await post(made)
    assert len(daemon.booked) == 1
    assert made.unreadable == "000000000007.json"
    assert (tmp_path / "usage" / "000000000007.unreadable").read_text() == "{"


async def test_why_a_record_is_refused_is_told(daemon: Daemon, tmp_path: Path):
    made = watch(daemon, tmp_path)
    daemon.refused = (RefusedRecord(number=1, why="no such tenant"),)
    hear(made, [line(1)])
    await post(made)
    assert (made.refused, made.waiting) == ("no such tenant", 0)


def load(prompt: int, output: int, *, counts_cached: bool) -> EngineLoad:
    counts = EngineCounts(prompt_tokens=prompt, output_tokens=output)
    return EngineLoad(0, 0, counts=counts, counts_cached=counts_cached)


@pytest.mark.parametrize("counts_cached", [True, False])
async def test_engines_counters_are_told_once_as_they_count(
    daemon: Daemon, tmp_path: Path, counts_cached: bool
):
    """llama.cpp counts prompts without what it found in its cache, vLLM with it."""
    made = watch(daemon, tmp_path)
    hear(made, [line(1)])
    await post(made)
    made.counted("nlp/chat", RUN, load(9, 7, counts_cached=counts_cached))
    await made.report_counters()
    await made.report_counters()
    (run,) = daemon.counters
    assert (run.prompt_tokens, run.output_tokens, run.counts_cached) == (9, 7, counts_cached)
    after = watch(daemon, tmp_path)
    await after.report_counters()
    assert daemon.counters[-1] == run, "told again as it was seen, not as of now"
    # Another launcher, perhaps of another host, says the same.
    other = watch(daemon, tmp_path / "other")
    other.counted("nlp/chat", RUN, load(9, 7, counts_cached=counts_cached))
    await other.report_counters()
    last = daemon.counters[-1]
    assert (last.prompt_tokens, last.output_tokens, last.counts_cached) == (9, 7, counts_cached)


async def test_what_comes_while_a_batch_is_posted_joins_another_one(daemon: Daemon, tmp_path: Path):
    made = watch(daemon, tmp_path)
    book = daemon.post_usage

    async def slow(request: UsagePostRequest) -> UsagePostAnswer:
        if len(daemon.booked) == 0:
            hear(made, [line(65)])
            await made.write()
        return await book(request)

    daemon.post_usage = slow  # type: ignore[method-assign]
    hear(made, [line(1)])
    await post(made)
    assert (len(daemon.booked), made.waiting) == (2, 0)


async def test_a_line_that_waits_for_its_replica_s_run_survives_a_kill(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("slicewise.launcher.process.usage_watch.wall_s", lambda: 2.0)
    made = watch(daemon, tmp_path)
    told = [line(1), line(65, "0b" * 32), line(129), line(2)]
    hear(made, told)
    await post(made)
    # The next launcher hears all that the ring has.
    after = watch(daemon, tmp_path)
    hear(after, told)
    after.turned(state("0b" * 32, DIGEST))
    await post(after)
    assert {number for _, number in daemon.booked} == {1, 65, 129, 2}
    assert after.missed == 0


async def test_what_a_full_disk_refused_is_counted_once(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = watch(daemon, tmp_path)
    hear(made, [line(1)])
    with monkeypatch.context() as full:

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(usage_journal, "replace_file", refuse)
        with pytest.raises(OSError, match="No space"):
            await post(made)
    await post(made)
    assert len(daemon.booked) == 1


async def test_an_engine_that_counts_beyond_all_hides_no_other_s_counts(
    daemon: Daemon, tmp_path: Path
):
    made = watch(daemon, tmp_path)
    made.turned(state(DIGEST, "0b" * 32))
    hear(made, [line(1)])
    await post(made)
    for _ in range(10):
        made.counted("nlp/chat", RUN, load(10**15, 7, counts_cached=False))
        made.counted("nlp/chat", RUN, load(0, 0, counts_cached=False))
    made.counted("nlp/chat", (7, 1, 1000), load(5, 7, counts_cached=False))
    await made.report_counters()
    assert [run.prompt_tokens for run in daemon.counters] == [2**53 - 1, 5]
