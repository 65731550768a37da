"""Tests what is told of a service's replicas from one look to the next."""

from builders.service_views import a_report, a_running_slot, a_service, a_slot

from slicewise.cluster.rpc.messages import ModelRefusal, ServiceReport, SlotView
from slicewise.cluster.rpc.read_messages import ServiceEvent
from slicewise.slurm_plugin.rules.services.remembered_events import MOST, RememberedEvents

Look = tuple[SlotView | None, ServiceReport]
PLACE = (814, 0)
HELD = a_slot(0, "held")
RUNS = a_running_slot(0, node="gpu1")
NOTHING = a_report()
READY, DRAINS = a_report(ready=(PLACE,)), a_report(draining=(PLACE,))


def told(*looks: Look) -> list[ServiceEvent]:
    events = RememberedEvents()
    for second, (slot, report) in enumerate(looks):
        views = () if slot is None else (a_service(slots=(slot,)),)
        events.follow(views, (report,), second)
    return [one for service in events.named("chat", None) for one in service.events]


def said(*looks: Look) -> list[tuple[str, str]]:
    return [(one.what, one.why or "") for one in told(*looks)]


def test_a_replica_starts_gets_ready_drains_and_ends():
    looks = ((HELD, NOTHING), (RUNS, NOTHING), (RUNS, READY), (RUNS, DRAINS), (HELD, NOTHING))
    whole = ServiceEvent(at_s=1, array_job_id=814, slot=0, node="gpu1", what="started")
    assert told(*looks)[0] == whole
    assert said(*looks) == [
        ("started", ""),
        ("ready", ""),
        ("drains", "no longer needed"),
        ("ended", ""),
    ]


def test_it_is_told_for_whom_a_replica_ends():
    goes = RUNS.model_copy(update={"ends_in_s": 0, "ends_why": "nlp takes back its quota"})
    assert said((RUNS, READY), (goes, READY), (goes, DRAINS), (HELD, NOTHING)) == [
        ("told to end", "nlp takes back its quota"),
        ("drains", "nlp takes back its quota"),
        ("ended", "nlp takes back its quota"),
    ]


def test_a_failure_has_its_cause():
    killed = HELD.model_copy(update={"last_failure": "ended with 137"})
    assert said((RUNS, READY), (killed, NOTHING)) == [("failed", "ended with 137")]
    gone = a_slot(0, "gone", slurm_state="CANCELLED")
    assert said((RUNS, READY), (gone, NOTHING)) == [("ended", ""), ("lost", "CANCELLED")]


def test_a_run_that_follows_within_one_look_is_another_one():
    again = RUNS.model_copy(update={"start_s": 70})
    assert said((RUNS, READY), (again, NOTHING)) == [("ended", ""), ("started", "")]


def test_a_run_that_ends_is_one_though_slurm_says_another_start_each_second():
    ends = [
        (a_running_slot(start_s=at_s).model_copy(update={"state": "ending"}), NOTHING)
        for at_s in (60, 61)
    ]
    assert said((RUNS, NOTHING), *ends, (HELD, NOTHING), (RUNS, NOTHING)) == [
        ("ended", ""),
        ("started", ""),
    ]


def test_of_what_was_there_before_it_looked_it_knows_no_time():
    assert said((RUNS, READY)) == []
    assert said((RUNS, READY), (RUNS, READY)) == []


def test_a_replica_of_the_pool_that_could_not_load_the_model_is_told_once():
    refusal = ModelRefusal(array_job_id=9, slot=1, why="out of memory")
    refused = a_report(refusals=(refusal,))
    host = a_service(array_job_id=9, name="host", slots=(HELD, a_running_slot(1, node="gpu7")))
    events, views = RememberedEvents(), (a_service(slots=(HELD,)), host)
    for second, report in enumerate((NOTHING, refused, refused, NOTHING)):
        events.follow(views, (report,), second)
    (chat,) = events.named("chat", None)
    assert chat.events == (
        ServiceEvent(
            at_s=1, array_job_id=9, slot=1, node="gpu7", what="refused", why="out of memory"
        ),
    )


def test_events_go_with_their_service_and_only_the_last_ones_stay():
    assert told((HELD, NOTHING), (RUNS, NOTHING), (None, NOTHING)) == []
    looks = [(RUNS, NOTHING), (HELD, NOTHING)] * MOST
    assert len(told(*looks)) == MOST


def test_of_several_tenants_each_has_its_own():
    events = RememberedEvents()
    for slot in (HELD, RUNS):
        views = tuple(
            a_service(tenant=name, array_job_id=number, slots=(slot,))
            for number, name in enumerate(("vision", "nlp"), 814)
        )
        events.follow(views, (), 5)
    assert [one.tenant for one in events.named("chat", None)] == ["nlp", "vision"]
    assert [one.tenant for one in events.named("chat", {"nlp"})] == ["nlp"]
    assert events.named("other", None) == ()


def test_a_replica_does_not_get_ready_again_because_the_launcher_was_away():
    """Each restart of the launcher was "ready" once more for each replica."""
    events, views = RememberedEvents(), (a_service(slots=(RUNS,)),)
    for second, reports in enumerate(((NOTHING,), (READY,), (), (READY,))):
        events.follow(views, reports, second)
    (chat,) = events.named("chat", None)
    assert [(one.at_s, one.what) for one in chat.events] == [(1, "ready")]
