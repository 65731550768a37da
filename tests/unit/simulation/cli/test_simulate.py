"""Tests slicewise simulate end to end, on a small site: what it prints, writes and refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders.small_site import JOBS, START_S, site
from builders.tenants import tenant
from stand_ins.small_site_command import Said, lending_without_limit, simulating

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.simulation.cli import inputs, simulate
from slicewise.simulation.rules.history.jobs import JobHistory
from slicewise.simulation.rules.snapshot.site import untouched_ledger
from slicewise.simulation.runs import simulate as runs
from slicewise.slurm_plugin.rules.quota.calendar_times import moment

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def change(tmp_path: Path) -> Path:
    return lending_without_limit(tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    return simulating(monkeypatch)


def refused(said: Said, *words: object) -> str:
    with pytest.raises(SlicewiseError) as error:
        said(*words)
    return str(error.value)


def test_a_change_stands_beside_the_present(said: Said, change: Path):
    shown = said("--change", change, "--offsets", 1)
    parts = ("What changes", "How far to trust it", "Present and changed", "Who gains")
    places = [shown.index(part) for part in parts]
    assert places == sorted(places)
    assert "vision: nominal 28 slices, borrowing limit unlimited (was 0)" in shown
    assert "4.9 days of lab, 80 jobs, 56 slices; seed 1, 1 part." in shown
    assert re.search(r"^wait, mean .* better$", shown, flags=re.MULTILINE)
    assert re.search(r"^slices in use .*\+[0-9.]+ points +better$", shown, flags=re.MULTILINE)
    assert re.search(r"^vision .* gains$", shown, flags=re.MULTILINE)
    assert "What was left out or assumed" in shown


def test_a_report_takes_the_place_of_no_file_that_is_read(said: Said, change: Path):
    link = change.with_name("link.html")
    link.hardlink_to(change)
    words = change.read_text()
    assert "SW-OUTPUT" in refused(said, "--change", change, "--output", link)
    assert change.read_text() == words


def test_the_present_alone_is_compared_with_the_past(said: Said):
    shown = said("--offsets", 1)
    assert "What changes" not in shown
    assert re.search(r"^wait, mean +1 min +", shown, flags=re.MULTILINE)
    assert "jobs waited in the simulation within" in shown


def test_json_has_all_figures_and_says_the_same_twice(said: Said, change: Path):
    first, second = (json.loads(said("--change", change, "--json", "--seed", 3)) for _ in range(2))
    assert first["seconds"] == 0, "what it took, by a clock that stands still"
    assert first == second
    assert (first["cluster"], first["seed"], first["offsets"]) == ("lab", 3, 2)
    assert first["changes"][0].startswith("nlp: nominal 28 slices")
    verdicts = {one["tenant"]: one["verdict"] for one in first["tenant_verdicts"]}
    assert verdicts["vision"] == "better"
    assert {one["figure"] for one in first["differences"]} >= {"utilisation", "wait_mean_s"}
    assert first["present"]["jobs"] == first["changed"]["jobs"] == len(JOBS)


def test_a_report_is_one_file_that_only_its_owner_reads(said: Said, change: Path, tmp_path: Path):
    file = tmp_path / "report.html"
    words = ("--change", change, "--offsets", 1, "--output", file)
    assert f"{file}: written" in said(*words, on="stderr")
    assert file.stat().st_mode & 0o077 == 0
    text = file.read_text()
    assert "What would have happened on lab" in text
    assert "borrowing limit unlimited" in text


def test_that_a_history_has_no_gpus_is_said_before_it_is_simulated(
    said: Said, monkeypatch: pytest.MonkeyPatch
):
    bare = tuple(replace(job, gpus={}, cpus=8) for job in JOBS)
    monkeypatch.setattr(inputs, "read_site", lambda _: site(JobHistory(bare)))
    assert said("--offsets", 1, on="stderr").startswith("No job of the history asks for GPUs")
    notes = json.loads(said("--offsets", 1, "--cpus-per-gpu", 4, "--json"))["notes"]
    assert "ask for one for 4 CPUs that it had" in notes[0]


@pytest.fixture
def chat(tmp_path: Path) -> tuple[str, ...]:
    """A service of nlp that gets a request each half minute for ten minutes, each of 40 s."""
    service, trace = tmp_path / "chat.toml", tmp_path / "requests.csv"
    service.write_text(
        '[service]\nname = "chat"\ntenant = "nlp"\nmodel = "m"\nmodel_repository = "/m"\n'
        'profile = "a100"\nmax_replicas = 8\nmax_queue_s = 30\n'
        "keep_alive_s = 5\n[engine]\nloads_s = [20]\n"
    )
    trace.write_text("\n".join(f"{at_s},40" for at_s in range(0, 600, 30)))
    return "--service", str(service), "--requests", f"nlp/chat={trace}"


@pytest.mark.slow
def test_a_service_under_a_load_stands_beside_the_jobs(
    said: Said, change: Path, chat: tuple[str, ...], tmp_path: Path
):
    page = tmp_path / "report.html"
    shown = said("--change", change, "--days", 1, *chat, "--output", page)
    assert re.search(r"^nlp/chat +20 +\d.* (gains|loses|as before)$", shown, flags=re.MULTILINE)
    assert "nlp/chat: 20 requests, moved to begin with the simulated time" in shown
    assert "Slice-hours are what its replicas held; in a pool" in page.read_text()
    found = json.loads(said("--days", 1, *chat, "--json"))
    (service,) = found["present"]["services"]
    assert (service["service"], service["requests"], service["lost"]) == ("nlp/chat", 20, 0)
    # A replica of seven slices works on each for 40 s.
    assert service["slice_s"] > 7 * 20 * 40
    assert found["service_verdicts"] == [{"service": "nlp/chat", "interval": None, "verdict": None}]


@pytest.fixture
def small_models(tmp_path: Path) -> tuple[str, ...]:
    """Three services of nlp, each asked for a second each five minutes, in turn."""
    words: list[str] = []
    for nth, name in enumerate(("bert", "ner", "tag")):
        file, trace = tmp_path / f"{name}.toml", tmp_path / f"{name}.csv"
        file.write_text(
            f'[service]\nname = "{name}"\ntenant = "nlp"\nmodel = "{name}"\n'
            'model_repository = "/m"\nprofile = "a100"\nmax_queue_s = 30\nmodel_mib = 900\n'
            "[engine]\nloads_s = [20]\nmodel_load_s = 2\n"
        )
        trace.write_text("\n".join(f"{at_s},1" for at_s in range(60 * nth, 1200, 300)))
        words += ["--service", str(file), "--requests", f"nlp/{name}={trace}"]
    return tuple(words)


@pytest.mark.slow
def test_what_a_pool_would_save_stands_beside_the_services_alone(
    said: Said, small_models: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(inputs, "read_site", lambda _: site(None))
    page = tmp_path / "pool.html"
    words = (*small_models, "--pooled", "--days", 1, "--json", "--output", page)
    found = json.loads(said(*words))
    text = page.read_text()
    assert "No jobs of the past: the services have the cluster for themselves, for 1 day" in text
    assert "nlp/bert, nlp/ner, nlp/tag share replicas: models of 2,700 MiB together" in text
    assert "together" in text
    alone, pooled = (found["services_together"][side] for side in ("present", "changed"))
    assert (alone["requests"], pooled["requests"]) == (12, 12)
    assert pooled["slice_s"] < 0.6 * alone["slice_s"]
    assert (alone["loads"], pooled["loads"] >= 2) == (0, True)
    by_service = [one["slice_s"] for one in found["changed"]["services"]]
    assert sum(by_service) == pytest.approx(pooled["slice_s"])


def test_what_can_not_share_replicas_is_refused_with_why(said: Said, small_models: tuple[str, ...]):
    file = Path(small_models[1])
    words = file.read_text()
    assert "nlp/bert is the only service of nlp" in refused(said, "--pooled", *small_models[:4])
    assert "--pooled names no services" in refused(said, "--pooled")
    for line, why in (
        ("cpus = 4", "nlp/ner can't share replicas with nlp/bert: cpus differs"),
        ('engine = "vllm"', "can't load and unload models"),
        ("nodes = 2", "nodes"),
    ):
        file.write_text(words.replace("[engine]", f"{line}\n[engine]"))
        assert why in refused(said, "--pooled", *small_models)
    file.write_text(words.replace('model = "bert"', 'model = "ner"'))
    assert "have a model of the same name" in refused(said, "--pooled", *small_models)
    file.write_text(words.replace("model_mib = 900\n", ""))
    assert "nlp/bert: how many models fit" in refused(said, "--pooled", *small_models)


def test_a_report_takes_the_place_of_no_service_and_no_trace(said: Said, chat: tuple[str, ...]):
    for file in (chat[1], chat[3].partition("=")[2]):
        words = Path(file).read_text()
        assert "SW-OUTPUT" in refused(said, *chat, "--output", file)
        assert Path(file).read_text() == words


def test_only_jobs_of_the_time_count(said: Said):
    found = json.loads(said("--from", "2026-10-02", "--days", 1, "--json"))
    assert found["present"]["start_s"] == START_S + 86_400
    assert found["present"]["jobs"] == 16


def test_a_time_without_jobs_is_refused_with_when_there_are_some(said: Said):
    text = refused(said, "--from", "2027-01-01", "--days", 1)
    assert "SW-USAGE" in text
    assert "2026-10-01 00:00 to 2026-10-05 22:30, UTC" in text


@pytest.mark.parametrize("history", [None, JobHistory(())])
def test_a_site_without_a_past_needs_jobs(
    said: Said, monkeypatch: pytest.MonkeyPatch, history: JobHistory | None
):
    monkeypatch.setattr(inputs, "read_site", lambda _: site(history))
    assert "by --jobs" in refused(said)


def test_jobs_of_elsewhere_are_fitted(said: Said, tmp_path: Path):
    file = tmp_path / "philly.csv"
    rows = (f"2017-10-09 {hour:02}:00:00,3600,2,7200,vc{hour % 2}" for hour in range(24))
    file.write_text("\n".join(("timestamp,duration,num_gpus,gpu_time,cluster", *rows)))
    found = json.loads(said("--jobs", file, "--json"))
    tenants = {one["tenant"]: one["jobs"] for one in found["present"]["tenants"]}
    assert tenants == {"vision": 12, "nlp": 12}
    assert found["self_check"] is None
    assert found["unchecked"] == "This history does not say when its jobs really started"
    assert "Jobs of partitions that the cluster does not have are run in gpu." in found["notes"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2017-10-09 07:01:55,66.0,99,66.0,a", "1 job was left out: no nodes of their partition"),
        ("2017-10-09 07:01:55,66.0,8,66.0,a", r"present: 1 job was refused \(SW-"),
    ],
)
def test_where_no_job_is_left_the_error_says_what_became_of_them(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: str, why: str
):
    if "refused" in why:
        now, nothing = site().now, {"vision": tenant("vision")}
        now = replace(now, ledger=untouched_ledger(nothing, moment(0.0, "UTC")))
        monkeypatch.setattr(inputs, "read_site", lambda _: inputs.SiteInputs(now))
    file, page = tmp_path / "philly.csv", tmp_path / "report.html"
    file.write_text(f"timestamp,duration,num_gpus,gpu_time,cluster\n{row}\n")
    text = refused(said, "--jobs", file, "--output", page)
    assert "SW-USAGE" in text
    assert re.search(why, text)
    assert not page.exists()


def test_a_file_of_quotas_that_is_refused_simulates_nothing(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(runs, "part_run", None)
    file = tmp_path / "quotas.toml"
    file.write_text("[tenants.vision]\nnominal = -1\n")
    assert "SW-INPUT-FILE" in refused(said, "--change", file)


def test_a_report_that_can_t_be_written_simulates_nothing(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(runs, "part_run", None)
    assert "SW-OUTPUT" in refused(said, "--output", tmp_path / "no" / "report.html")


def test_an_interruption_writes_nothing_and_says_so(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def interrupted(*_words: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "part_run", interrupted)
    file = tmp_path / "report.html"
    stderr = said("--output", file, code=130, on="stderr")
    assert "Interrupted: nothing was written." in stderr
    assert list(tmp_path.iterdir()) == []


def test_as_many_processes_as_cpus_unless_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulate.os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert simulate._cpus() == 3


def test_nodes_fail_as_often_as_is_said(said: Said):
    words = ("--offsets", 1, "--failures", 2)
    shown = said(*words)
    assert re.search(r"^failures of nodes +[1-9]", shown, flags=re.MULTILINE)
    first, longer = (
        json.loads(said(*words, "--json", "--repair", hours))["present"]["failures"]
        for hours in (1, 20)
    )
    assert first["failures"] > 0
    assert longer["down_slice_s"] > 2 * first["down_slice_s"]
    assert json.loads(said("--json"))["present"]["failures"] is None
    assert "SW-USAGE" in refused(said, "--repair", 4)
