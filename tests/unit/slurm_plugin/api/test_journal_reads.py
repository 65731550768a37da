"""Tests what operators are told of the journals: in pages, each step with its time, and bounded."""

from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import pytest
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepName,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.rpc.journal_messages import (
    RebalanceAnswer,
    RebalanceRequest,
    RebalancesAnswer,
    RebalancesRequest,
    RepartitionAnswer,
    RepartitionRequest,
    RepartitionsAnswer,
    RepartitionsRequest,
)
from slicewise.cluster.rpc.message import read_answer
from slicewise.slurm_plugin.api import journal_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.routes import Asked, Routes

pytestmark = pytest.mark.usefixtures("clock")

ROOT = Principal(0, "root", None)
LEND = StepRecord(
    StepName.LEND, StepOutcome.DONE, 101.0, 101.25, {"loans": 2}, ("vision lends 1 to nlp",)
)
COMPILE = StepRecord(StepName.COMPILE, StepOutcome.RUNNING, 102.0)
CUT = RepartitionStepRecord(
    RepartitionStep.CUT, Direction.FORWARD, RepartitionStepOutcome.DONE, 11.0, 13.5, "cut"
)


def run(number: int, *records: StepRecord, ended_s: float | None = 110.0) -> RebalanceRun:
    return RebalanceRun(number, "root", "head", RunOutcome.DONE, 100.0, ended_s, records)


def repartition(number: int, *records: RepartitionStepRecord) -> Repartition:
    planned = PlannedRepartition(
        "gpu01",
        "GPU-1",
        (Placement("3g.40gb", 0, 4),),
        (Placement("1g.10gb", 0, 1), Placement("1g.10gb", 1, 1)),
        ("bert",),
        "2 jobs wait",
        5000,
        700,
    )
    return Repartition(
        **vars(planned),
        repartition_id=number,
        author="root",
        state=RepartitionState.ROLLED_BACK,
        error="no",
        started_s=10.0,
        ended_s=20.0,
        slurm_conf="conf",
        gres_conf="gres",
        steps=records,
    )


T = TypeVar("T")


@dataclass
class Journal(Generic[T]):
    """The entries by their ids."""

    entries: dict[int, T] = field(default_factory=dict)

    def history(self, limit: int, before: int | None = None) -> tuple[T, ...]:
        ids = sorted((one for one in self.entries if before is None or one < before), reverse=True)
        return tuple(self.entries[one] for one in ids[:limit])

    def find(self, number: int) -> T:
        return self.entries[number]


class Journals(ScriptedLedger):
    rebalances = Journal({one: run(one, LEND, COMPILE) for one in range(1, 6)})
    repartitions = Journal({one: repartition(one, CUT) for one in range(1, 6)})


@pytest.fixture
async def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setattr(journal_reads, "_PAGE_ENTRIES", 2)
    slurm = ScriptedSlurm()
    return Reads(settings(), slurm, Journals(), sync_of(slurm))


async def runs(reads: Reads, before: int | None = None) -> RebalancesAnswer:
    handle = reads.handlers()[RebalancesRequest]
    answer = await handle(RebalancesRequest(before=before), ROOT)
    assert isinstance(answer, RebalancesAnswer)
    return answer


async def cuts(reads: Reads, before: int | None = None) -> RepartitionsAnswer:
    handle = reads.handlers()[RepartitionsRequest]
    answer = await handle(RepartitionsRequest(before=before), ROOT)
    assert isinstance(answer, RepartitionsAnswer)
    return answer


async def test_runs_come_in_pages_the_newest_first(reads: Reads):
    found, before, pages = [], None, 0
    while pages == 0 or before is not None:
        page = await runs(reads, before)
        found += [one.run_id for one in page.runs]
        before, pages = page.more, pages + 1
    assert (found, pages) == ([5, 4, 3, 2, 1], 3)


async def test_a_run_has_its_steps_with_their_times(reads: Reads):
    one = (await runs(reads)).runs[0]
    assert (one.author, one.host, one.outcome, one.took_s) == ("root", "head", "done", 10.0)
    lend, compiling = one.steps
    assert (lend.step, lend.outcome, lend.took_s, lend.saw) == ("lend", "done", 0.25, {"loans": 2})
    assert (lend.did, lend.left_out) == (("vision lends 1 to nlp",), 0)
    assert (compiling.outcome, compiling.took_s) == ("running", None)


async def test_of_what_a_step_did_the_first_lines_are_told(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    many = replace(LEND, did=("a",) * 30, saw={"loans": 2, "planned": ["b"] * 25})
    monkeypatch.setattr(Journals, "rebalances", Journal({1: run(1, many)}))
    (step,) = (await runs(reads)).runs[0].steps
    assert (len(step.did), step.left_out) == (20, 10 + 5)
    assert step.saw == {"loans": 2, "planned": ["b"] * 20}


async def test_one_run_and_one_repartition_have_all(reads: Reads, monkeypatch: pytest.MonkeyPatch):
    many = replace(LEND, did=("a",) * 30)
    monkeypatch.setattr(Journals, "rebalances", Journal({1: run(1, many)}))
    found = await reads.handlers()[RebalanceRequest](RebalanceRequest(run_id=1), ROOT)
    assert isinstance(found, RebalanceAnswer)
    assert (len(found.run.steps[0].did), found.run.steps[0].left_out) == (30, 0)
    steps = (CUT,) * 130
    monkeypatch.setattr(Journals, "repartitions", Journal({1: repartition(1, *steps)}))
    request = RepartitionRequest(repartition_id=1)
    whole = await reads.handlers()[RepartitionRequest](request, ROOT)
    assert isinstance(whole, RepartitionAnswer)
    assert (len(whole.repartition.steps), whole.repartition.earlier_steps) == (130, 0)
    assert "conf" not in whole.model_dump_json()


async def test_repartitions_come_in_pages_the_newest_first(reads: Reads):
    first = await cuts(reads)
    assert ([one.repartition_id for one in first.repartitions], first.more) == ([5, 4], 4)
    last = await cuts(reads, 2)
    assert ([one.repartition_id for one in last.repartitions], last.more) == ([1], None)


async def test_a_repartition_says_where_from_what_to_what_and_why(reads: Reads):
    found = await cuts(reads)
    one = found.repartitions[0]
    assert (one.node, one.gpu, one.reason, one.error) == ("gpu01", "GPU-1", "2 jobs wait", "no")
    assert (one.state, one.took_s, one.moves) == ("rolled back", 10.0, ("bert",))
    assert [(it.profile, it.start, it.size) for it in one.before] == [("3g.40gb", 0, 4)]
    assert [it.start for it in one.after] == [0, 1]
    (step,) = one.steps
    assert (step.step, step.direction, step.outcome) == ("cut", "forward", "done")
    assert (step.took_s, step.words, one.earlier_steps) == (2.5, "cut", 0)
    assert "conf" not in found.model_dump_json()


async def test_who_reads_an_answer_has_what_was_sent(reads: Reads):
    for sent in (await cuts(reads), await runs(reads)):
        read = read_answer(type(sent), sent.model_dump_json(exclude_none=True).encode())
        assert read.model_dump() == sent.model_dump()


async def test_of_one_that_was_tried_often_the_last_steps_are_told(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
):
    steps = tuple(replace(CUT, words=str(number)) for number in range(130))
    monkeypatch.setattr(Journals, "repartitions", Journal({1: repartition(1, *steps)}))
    (one,) = (await cuts(reads)).repartitions
    assert (len(one.steps), one.steps[-1].words, one.earlier_steps) == (100, "129", 30)


@pytest.mark.parametrize("path", ["rebalances", "repartitions"])
async def test_only_operators_read_the_journals(reads: Reads, path: str):
    handlers = reads.handlers()
    routes = Routes(
        {
            kind: lambda request, _: handlers[type(request)](request, ROOT)
            for kind in (RebalancesRequest, RepartitionsRequest)
        },
        lambda asker, uid: asker == "everybody" or uid == 0,
    )
    assert (await routes.reply(Asked("GET", f"/v1/{path}", b"", 61001))).status == 403
    assert (await routes.reply(Asked("GET", f"/v1/{path}?before=3", b"", 0))).status == 200
    assert (await routes.reply(Asked("GET", f"/v1/{path}?before=0", b"", 0))).status == 400
