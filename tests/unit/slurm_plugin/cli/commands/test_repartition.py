"""Tests what slicewise repartition prints, which users may run it, and its exit codes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from stand_ins.daemon_in_process import answer_from
from stand_ins.repartition_world import (
    BEFORE,
    Crashes,
    MemoryJournal,
    RepartitionWorld,
    inventory_of,
    planned,
)
from stand_ins.scripted import ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
    RepartitionState,
)
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.repartition_desk import RepartitionDesk
from slicewise.slurm_plugin.cli.commands import repartition, repartition_run
from slicewise.slurm_plugin.repartition import cluster_run
from slicewise.slurm_plugin.repartition.survey import Survey
from slicewise.slurm_plugin.rules.mig.cuts_due import DueRepartitions
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand
from slicewise.slurm_plugin.rules.mig.planner import RepartitionTerms
from slicewise.slurm_plugin.rules.mig.problem import PlanInput, SitePlanInput

pytestmark = pytest.mark.usefixtures("clock")

GPUS = ("gpu01", "gpu02")
TOML = """
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb", "3g.40gb"]
[repartition]
allowed = {allowed}
"""


class Lock:
    def __init__(self, *, is_free: bool) -> None:
        self.is_free = is_free

    def hold(self) -> bool:
        return self.is_free

    def holder(self) -> str:
        return "head, process 4711"

    def give_up(self) -> None:
        return


class LockedJournal(MemoryJournal):
    """As the ledger has it."""

    is_free = True

    def repartitioning(self, host: str) -> Lock:
        assert ", process " in host
        return Lock(is_free=self.is_free)

    def history(self, limit: int, before: int | None = None) -> tuple[Repartition, ...]:
        newest = (self.kept[one] for one in sorted(self.kept, reverse=True))
        return tuple(one for one in newest if before is None or one.repartition_id < before)[:limit]


@dataclass
class Site:
    """A site with one plan."""

    path: Path
    crashes: Crashes = field(default_factory=Crashes)

    def __post_init__(self) -> None:
        self.journal, self.world = LockedJournal(self.crashes), RepartitionWorld(self.crashes)
        self.allow("true")

    def allow(self, allowed: str) -> None:
        self.path.write_text(TOML.format(allowed=allowed))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path / "slicewise.toml")

    @contextmanager
    def opened(_: object) -> Iterator[MemoryJournal]:
        yield made.journal

    async def gathered(*_: object) -> SitePlanInput:
        return SitePlanInput(boards={}, left_out={"gpu09": "it was never surveyed"}, looks={})

    monkeypatch.setenv("SLICEWISE_CONFIG", str(made.path))

    def due() -> DueRepartitions:
        return DueRepartitions(() if made.world.is_after() else (planned(),))

    monkeypatch.setattr(repartition_run, "opened_ledger", opened)
    for module in (repartition_run, cluster_run):
        monkeypatch.setattr(module, "gathered", gathered)
        monkeypatch.setattr(module, "cuts_due", lambda _: due())
    monkeypatch.setattr(cluster_run, "ClusterSite", lambda *_: made.world)
    monkeypatch.setattr(repartition_run.os, "geteuid", lambda: 0)
    slurm = ScriptedSlurm()
    cluster_state = sync_of(slurm)
    reads = Reads(settings(), slurm, made.journal, cluster_state)  # type: ignore[arg-type]
    desk = RepartitionDesk(settings(), made.journal, cluster_state, reads)  # type: ignore[arg-type]
    answer_from(monkeypatch, {**reads.handlers(), **desk.handlers()})
    return made


def test_a_run_prints_a_line_for_each_step_and_its_end(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    repartition.run_repartitions()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:6]] == [
        "reserve",
        "move",
        "cut",
        "tell",
        "verify",
        "resume",
    ]
    assert lines[-1] == "Repartition 1 on gpu01: done."
    assert site.world.is_after()


def test_json_has_each_step_with_its_seconds(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    repartition.run_repartitions(as_json=True)
    (entry,) = json.loads(capsys.readouterr().out)["repartitions"]
    assert (entry["state"], entry["after"][-1]["profile"]) == ("done", "3g.40gb")
    assert [one["took_s"] for one in entry["steps"]] == [1.0] * 6
    repartition.show(1, as_json=True)
    assert json.loads(capsys.readouterr().out) == entry


def test_a_survey_shows_how_gpus_are_cut(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = inventory_of(planned().after)
    bare = inventory_of(())

    async def surveyed(*_: object) -> Survey:
        return Survey({"gpu01": cut, "gpu02": bare}, {"gpu03": "no core is free"})

    monkeypatch.setattr(repartition_run, "survey", surveyed)
    monkeypatch.setattr(repartition_run, "open_slurm", lambda _: None)
    with pytest.raises(typer.Exit):
        repartition.look()
    out = capsys.readouterr().out
    first, second = (next(line for line in out.splitlines() if node in line) for node in GPUS)
    assert ("3g.40gb" in first, "3g" in second) == (True, False), out
    assert "gpu03: no core is free" in out
    with pytest.raises(typer.Exit):
        repartition.look(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["seen"], said["failed"]) == (list(GPUS), {"gpu03": "no core is free"})
    assert [(one["node"], one["instances"][-9:]) for one in said["gpus"]] == [
        ("gpu01", "3g.40gb@4"),
        ("gpu02", ""),
    ]


def test_a_dry_run_says_each_step_and_does_none(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    repartition.run_repartitions(dry_run=True)
    out = capsys.readouterr().out
    assert "gpu01  move     vision/bert: a successor first, then the end" in out
    assert "GPU-a: 3 1g.10gb to 3g.40gb@4" in out
    assert out.endswith("Nothing was done.\n")
    assert site.crashes.calls == []


def test_a_site_that_allows_none_gets_the_plan_as_text(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.allow("false")
    monkeypatch.setattr(repartition_run.os, "geteuid", lambda: 1000)
    repartition.run_repartitions()
    out = capsys.readouterr().out
    assert "3g more: 1 waits" in out
    assert "gpu09 is left out: it was never surveyed" in out
    assert out.endswith("Nothing was done: repartition.allowed is false in slicewise.toml.\n")
    repartition.run_repartitions(as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["done"], len(shown["plan"]), site.crashes.calls) == (False, 1, [])


def test_only_root_cuts_and_looks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repartition_run.os, "geteuid", lambda: 1000)
    for command in (repartition.run_repartitions, repartition.look):
        with pytest.raises(InvalidInputError, match="SW-ROOT"):
            command()
    assert site.crashes.calls == []


def test_while_another_run_cuts_it_says_which_and_is_content(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.journal.is_free = False
    repartition.run_repartitions()
    assert "(head, process 4711): nothing was done" in capsys.readouterr().out
    repartition.run_repartitions(as_json=True)
    assert json.loads(capsys.readouterr().out)["busy"] == "head, process 4711"


def test_a_step_that_fails_makes_the_command_fail(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.crashes.fail = {"cut": 1}
    with pytest.raises(typer.Exit) as exited:
        repartition.run_repartitions()
    assert exited.value.exit_code == 1
    assert "Repartition 1 on gpu01: rolled back. cut failed" in capsys.readouterr().out


def test_one_that_is_stuck_is_an_error_with_what_to_do(site: Site) -> None:
    site.crashes.fail = {"cut": 2}
    with pytest.raises(OutsideError, match="SW-REPARTITION-STUCK"):
        repartition.run_repartitions()
    site.journal.is_free = False
    with pytest.raises(InvalidInputError, match=r"A run cuts GPUs now.*SW-LOCK"):
        repartition.close(1)
    assert site.journal.unfinished()
    site.journal.is_free = True
    for _ in range(2):
        repartition.close(1)
    assert site.journal.find(1).state is RepartitionState.CLOSED
    assert site.journal.unfinished() == ()


def test_what_is_unfinished_comes_first_and_nothing_new_is_begun(site: Site) -> None:
    site.journal.open(planned(), "root")
    repartition.run_repartitions()
    assert {one.state for one in site.journal.kept.values()} == {RepartitionState.DONE}
    assert len(site.journal.kept) == 1


def test_only_what_is_stuck_can_be_closed(site: Site) -> None:
    site.journal.open(planned(), "root")
    with pytest.raises(InvalidInputError, match="SW-NOTHING"):
        repartition.close(1)


def test_a_plan_says_what_stays_for_guarantees(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demand = InstanceDemand(guaranteed={"7g.80gb": 4, "1g.10gb": 2})
    board_of = PlanInput(board("A100-80GB"), (), demand, RepartitionTerms(60, 3600, 1), {})

    async def gathered(*_: object) -> SitePlanInput:
        return SitePlanInput({"A100-80GB": board_of}, {}, {})

    monkeypatch.setattr(repartition_run, "gathered", gathered)
    repartition.run_repartitions(dry_run=True)
    said = "Kept on A100-80GB for guarantees: 2 1g.10gb, 4 7g.80gb."
    assert said in capsys.readouterr().out
    repartition.run_repartitions(dry_run=True, as_json=True)
    found = json.loads(capsys.readouterr().out)["guaranteed"]
    assert found == {"A100-80GB": {"7g.80gb": 4, "1g.10gb": 2}}


def test_a_plan_says_what_slurm_has_no_order_of_devices_for(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    barred = {"3g.40gb": ("gpu01", "gpu02", "gpu03", "gpu04")}
    monkeypatch.setattr(repartition_run, "cuts_due", lambda _: DueRepartitions((), barred))
    repartition.run_repartitions(dry_run=True)
    said = capsys.readouterr().out
    assert "No 3g.40gb can be created on gpu01, gpu02, gpu03 and 1 more: Slurm" in said
    assert "no change would pay" not in said
    repartition.run_repartitions(dry_run=True, as_json=True)
    as_json = {"3g.40gb": list(barred["3g.40gb"])}
    assert json.loads(capsys.readouterr().out)["barred"] == as_json
    line = next(line for line in said.splitlines() if line.startswith("No 3g.40gb"))
    monkeypatch.setattr(cluster_run, "cuts_due", lambda _: DueRepartitions((), barred))
    for dry_run in (True, False):
        repartition.run_repartitions(dry_run=dry_run)
        told = capsys.readouterr().out.splitlines()
        assert line in told
        assert "No GPU is to be repartitioned." not in told
        repartition.run_repartitions(dry_run=dry_run, as_json=True)
        assert json.loads(capsys.readouterr().out)["barred"] == as_json


def test_history_and_plan_are_tables(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    repartition.history()
    assert capsys.readouterr().out == "No GPU was repartitioned yet.\n"
    repartition.run_repartitions()
    capsys.readouterr()
    repartition.history()
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["id", "started"]
    assert " done " in row
    repartition.show(1)
    assert "resume   forward" in capsys.readouterr().out
    site.world.layout = set(BEFORE)
    repartition.run_repartitions(dry_run=True, as_json=True)
    (one,) = json.loads(capsys.readouterr().out)["plan"]
    assert one["moves"] == ["vision/bert"]
