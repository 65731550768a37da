"""Tests which services are simulated: of the site or of files, with what requests and engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.small_site import JOBS, START_S, TENANTS, site
from stand_ins.scripted import job

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.simulation.cli.inputs import SiteInputs, demand, present_plan, slicewise_plan
from slicewise.simulation.cli.services import AskedServices, asked_services
from slicewise.simulation.rules.history.jobs import JobHistory
from slicewise.simulation.rules.services.service import EngineModel
from slicewise.simulation.rules.site.plans import SlicewisePlan, SlurmPlan
from slicewise.slurm_plugin.rules.snapshot.contents import SnapshotService

CHAT = "nlp/chat"
VALUES = {"profile": "a100", "max_replicas": "3", "max_queue_s": "2", "priority_class": "high"}
FILE = """
[service]
name = "chat"
tenant = "nlp"
model = "tokens"
model_repository = "/models"
profile = "a100"
max_replicas = 5
"""
Asked = Callable[..., AskedServices]


def with_services(*services: SnapshotService, **changes: Any) -> SiteInputs:
    of = site()
    return replace(of, now=replace(of.now, services=services, **changes))


def asked(
    of: SiteInputs, *requests: str, files: Sequence[Path] = (), days: int | None = None
) -> AskedServices:
    return asked_services(of, demand(of, None, start_s=None, days=days, seed=1), files, requests)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Requests at 0 and 30 s that say their seconds."""
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,service_s\n100,1\n130,3\n")
    return file


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    file = tmp_path / "chat.toml"
    file.write_text(FILE)
    return file


def refused(of: SiteInputs, *requests: str, files: Sequence[Path] = ()) -> str:
    with pytest.raises(InvalidInputError) as error:
        asked(of, *requests, files=files)
    return str(error.value)


def test_a_service_of_the_site_gets_its_requests(trace: Path):
    of = with_services(SnapshotService(7, "nlp", "chat", VALUES))
    found = asked(of, f"{CHAT}={trace}")
    (service,) = found.services
    assert (service.key, service.spec.max_replicas, service.spec.max_queue_s) == (CHAT, 3, 2.0)
    assert service.arrivals_s == (START_S, START_S + 30)
    assert service.engine == EngineModel((60.0,), (2.0,))
    assert service.partition == "gpu"
    assert service.site_factor > 0
    assert found.notes[0] == (
        "nlp/chat: 2 requests, moved to begin with the simulated time; the trace is 30 s long."
    )
    assert "a replica loads for 60 s" in found.notes[1]


def test_of_a_rolled_over_service_the_newest_generation_counts_and_no_run_of_any(trace: Path):
    of = with_services(
        SnapshotService(9, "nlp", "chat", VALUES | {"max_replicas": "4"}),
        SnapshotService(7, "nlp", "chat", VALUES),
    )
    past = (replace(JOBS[0], array_job_id=7), replace(JOBS[1], array_job_id=9), *JOBS[2:])
    of = replace(of, history=JobHistory(past))
    found = asked(of, f"{CHAT}={trace}")
    assert found.services[0].spec.max_replicas == 4
    assert found.without_their_runs(past) == JOBS[2:]
    assert "2 past runs of these services' replicas left out" in found.notes[-1]


def test_services_that_are_not_named_stay_as_the_past_has_them(trace: Path):
    other = SnapshotService(8, "vision", "see", VALUES)
    of = with_services(SnapshotService(7, "nlp", "chat", VALUES), other)
    assert [one.key for one in asked(of, f"{CHAT}={trace}").services] == [CHAT]
    assert asked(of) == AskedServices()
    assert asked(of).without_their_runs(JOBS) == JOBS


def test_a_service_of_the_site_that_can_t_be_read_matters_only_if_it_is_named(trace: Path):
    odd = SnapshotService(8, "nlp", "odd", {"max_replicas": "many"})
    of = with_services(SnapshotService(7, "nlp", "chat", VALUES), odd)
    assert len(asked(of, f"{CHAT}={trace}").services) == 1
    assert "max_replicas" in refused(of, f"nlp/odd={trace}")


def test_a_file_takes_the_place_of_the_site_s_own_and_may_have_an_engine(chat: Path, trace: Path):
    chat.write_text(FILE + "[engine]\nloads_s = [5, 9]\nseconds = { 1 = 1.0, 3 = 2.0 }\n")
    of = with_services(SnapshotService(7, "nlp", "chat", VALUES))
    found = asked(of, f"{CHAT}={trace}", files=[chat])
    (service,) = found.services
    assert (service.spec.max_replicas, found.arrays) == (5, frozenset({7}))
    assert service.engine == EngineModel((5.0, 9.0), (2.0, 3.0, 4.0))
    assert not any("assumed" in note for note in found.notes)


def test_a_service_without_requests_holds_what_it_keeps(chat: Path):
    found = asked(site(), files=[chat])
    assert found.services[0].arrivals_s == ()
    assert found.notes == ("nlp/chat gets no requests, and holds what its min_replicas say.",)


def test_requests_beyond_the_end_are_left_out(chat: Path, tmp_path: Path):
    file = tmp_path / "long.csv"
    file.write_text("0,1\n90000,1\n190000,1\n")
    found = asked(site(), f"{CHAT}={file}", files=[chat], days=1)
    assert len(found.services[0].arrivals_s) == 2
    assert "nlp/chat: 1 later request left out." in found.notes


def test_turns_are_further_apart_in_a_long_time(chat: Path):
    found = asked(site(), files=[chat])
    assert found.turn_s == 1.0
    late = replace(JOBS[-1], submit_s=START_S + 30 * 86_400.0)
    found = asked(replace(site(), history=JobHistory((*JOBS, late))), files=[chat])
    assert found.turn_s == 2.0
    assert found.notes[-1].startswith("The launcher looks at services each 2 s")


def test_what_needs_memory_gets_what_admission_chose_or_the_cheapest_type(trace: Path, chat: Path):
    values = {key: text for key, text in VALUES.items() if key != "profile"} | {"need_gib": "10"}
    slot = job(0, array_job_id=7, partition="elsewhere,gpu", tres={"gres/gpu:a100": "1"})
    of = with_services(SnapshotService(7, "nlp", "chat", values), jobs=(slot,))
    assert asked(of, f"{CHAT}={trace}").services[0].spec.profile == "a100"
    assert asked(of, f"{CHAT}={trace}").services[0].partition == "gpu"
    chat.write_text(FILE.replace('profile = "a100"', "need_gib = 70"))
    assert asked(site(), files=[chat]).services[0].spec.profile == "a100"
    chat.write_text(FILE.replace('profile = "a100"', "need_gib = 90"))
    assert "90 GiB" in refused(site(), files=[chat])


def test_a_new_service_that_slurm_would_not_take_is_refused(chat: Path):
    of = site()
    (partition,) = of.settings.cluster.partitions

    def where(max_time_s: int, *, enforces_limits: bool) -> SiteInputs:
        cluster = replace(of.cluster, max_time_s={partition: max_time_s})
        return replace(of, now=replace(of.now, cluster=cluster, enforces_limits=enforces_limits))

    assert asked(where(60, enforces_limits=False), files=[chat]).services
    said = refused(where(60, enforces_limits=True), files=[chat])
    assert f"above MaxTime of partition {partition}, 1 min" in said
    assert asked(where(864_000, enforces_limits=True), files=[chat]).services


def test_what_is_not_known_or_can_t_run_is_refused(trace: Path, chat: Path):
    of = with_services(SnapshotService(7, "nlp", "chat", VALUES))
    assert "services: nlp/chat" in refused(of, f"nlp/chit={trace}")
    assert "names no file" in refused(of, "nlp/chat")
    assert "twice" in refused(of, f"{CHAT}={trace}", f"{CHAT}={trace}")
    assert "SW-INPUT-FILE" in refused(of, f"{CHAT}={trace}.not")
    chat.write_text(FILE.replace("a100", "h100"))
    assert "no managed partition" in refused(of, files=[chat])
    chat.write_text(FILE + 'partition = "gone"\n')
    assert "no managed partition" in refused(of, files=[chat])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FILE + "[engine]\nloads_s = [0]\n", "engine.loads_s.0"),
        (FILE + "[engine]\nspeed = 1\n", "engine.speed"),
        (FILE + "[engine]\nseconds = { 0 = 1.0 }\n", "engine.seconds.0"),
        (FILE + "[other]\n", "and nothing else"),
        ("[engine]\n", "and nothing else"),
        (FILE + "colour = 3\n", "colour: no such key"),
        ("[", "not TOML"),
    ],
)
def test_a_file_that_is_no_service_s_is_refused(chat: Path, text: str, code: str):
    chat.write_text(text)
    assert code in refused(site(), files=[chat])


def test_only_slicewise_runs_services(chat: Path):
    of = asked(site(), files=[chat])
    present, alone = present_plan(site()), SlurmPlan("present")
    changed = slicewise_plan("changed", site(), TENANTS)
    assert isinstance(present, SlicewisePlan)
    both = of.of_plans(present, changed)
    assert both[0] == replace(present, services=of.services)
    assert both[1] == replace(changed, services=of.services)
    assert both[2] == of.notes
    assert "only the changed policy" in of.of_plans(alone, changed)[2][-1]
    with pytest.raises(InvalidInputError, match="Slurm's own"):
        of.of_plans(alone, None)
    assert AskedServices().of_plans(alone, None) == (alone, None, ())


POOLED = VALUES | {"pool": "small", "model_mib": "900"}


def test_services_of_a_snapshot_keep_their_pool(trace: Path):
    of = with_services(
        SnapshotService(7, "nlp", "chat", POOLED), SnapshotService(8, "nlp", "tag", POOLED)
    )
    found = asked(of, f"{CHAT}={trace}", f"nlp/tag={trace}")
    assert [one.spec.pool for one in found.services] == ["small", "small"]
    assert len({one.spec.model for one in found.services}) == 2
    assert found.pooled == ()
    assert any("nlp/chat, nlp/tag share replicas" in note for note in found.notes)


def test_traces_of_one_time_keep_their_distance_in_a_pool(trace: Path, tmp_path: Path):
    later = tmp_path / "later.csv"
    later.write_text("arrival_s,service_s\n400,1\n")
    of = with_services(
        SnapshotService(7, "nlp", "chat", POOLED), SnapshotService(8, "nlp", "tag", POOLED)
    )
    words = f"{CHAT}={trace}", f"nlp/tag={later}"
    demanded = demand(of, None, start_s=None, days=None, seed=1)
    found = asked_services(of, demanded, (), words, in_pools=True)
    assert [one.arrivals_s[0] - START_S for one in found.pooled] == [0, 300]
    assert [one.spec.pool for one in found.services] == [None, None]
    assert asked(of, *words).services[1].arrivals_s == (START_S,)
