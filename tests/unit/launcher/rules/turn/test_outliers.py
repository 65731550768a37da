"""Tests which replicas are doubted for what they answer, and how an inference decides."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from slicewise.cluster.language.service import LONGEST_DEADLINE_S
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.types import Server, ServerMode
from slicewise.launcher.rules.turn.outliers import (
    ASKED_S,
    FEWEST_REMOVALS,
    FEWEST_SILENT_S,
    REPLACED_S,
    SERVICE_TIMES,
    SPAN_S,
    Bounds,
    Outlier,
    Sight,
    Verdict,
    Watch,
    judge,
    removals_left,
)

OURS = Answer(Probe.OURS)
SILENT = Answer(Probe.SILENT)
FAILED = Answer(Probe.SILENT, "the model refused an inference", is_failure=True)


QUICK = Bounds(0.1, None, 3)


@dataclass
class World:
    """Replicas of one generation whose counters grow, and what is known of them."""

    servers: dict[int, Server]
    bounds: Bounds = QUICK
    now_s: float = 1000.0
    watched: Mapping[int, Watch] = field(default_factory=dict)
    found: tuple[Outlier, ...] = ()
    runs: dict[int, int] = field(default_factory=dict)

    def look(
        self,
        answered: Mapping[int, tuple[int, int]] = {},
        said: Mapping[int, Answer] = {},
        after_s: float = 1.0,
    ) -> tuple[Outlier, ...]:
        """Look again after some time: answers and errors that have come, by replica."""
        self.now_s += after_s
        for index, (answers, errors) in answered.items():
            one = self.servers[index]
            self.servers[index] = replace(
                one, answers=one.answers + answers, errors=one.errors + errors
            )
        sights = {
            index: Sight(
                (900 + index, self.runs.get(index, 50)),
                one,
                one.up and not (index in self.watched and self.watched[index].is_out),
                said.get(index),
            )
            for index, one in self.servers.items()
        }
        judged = judge(self.watched, sights, self.bounds, self.now_s)
        self.watched = judged.watched
        return judged.outliers

    @property
    def out(self) -> set[int]:
        return {index for index, one in self.watched.items() if one.is_out}


def world(replicas: int, in_flight: int = 1, bounds: Bounds = QUICK) -> World:
    line = Server("10.0.0.1", 21001, ServerMode.READY, up=True, in_flight=in_flight, queued=0)
    found = World(dict.fromkeys(range(replicas), line), bounds)
    found.look()
    return found


def verdicts(found: tuple[Outlier, ...]) -> list[tuple[int, Verdict]]:
    return [(one.index, one.verdict) for one in found]


def test_errors_of_one_replica_beside_good_siblings_take_it_out_and_ask_it():
    seen = world(3)
    (found,) = seen.look({0: (40, 0), 1: (20, 16), 2: (2, 0)})
    assert (found.index, found.verdict) == (1, Verdict.ASKED)
    assert found.why == "16 of its last 20 answers were errors (5xx, gRPC)"
    assert seen.out == {1}


@pytest.mark.parametrize(
    "answered",
    [
        {0: (40, 0), 1: (9, 9)},
        {0: (40, 0), 1: (40, 15)},
        {0: (40, 16), 1: (40, 28)},
    ],
    ids=["few answers", "fewer than half", "siblings fail, too"],
)
def test_no_replica_is_doubted_for(answered: Mapping[int, tuple[int, int]]):
    assert world(2).look(answered) == ()


def test_old_answers_fade():
    seen = world(2)
    seen.look({0: (5, 0), 1: (10_000, 0)})
    assert verdicts(seen.look({0: (5, 0), 1: (40, 40)})) == [(1, Verdict.ASKED)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_all_answer_errors_they_are_asked_and_go_on_meanwhile(replicas: int):
    seen = world(replicas)
    found = seen.look(dict.fromkeys(range(replicas), (20, 19)))
    assert verdicts(found) == [(index, Verdict.ASKED) for index in range(replicas)]
    assert seen.out == set()


def test_a_lone_replica_is_not_doubted_for_most_of_its_answers():
    assert world(1).look({0: (40, 30)}) == ()


def test_at_most_half_of_the_replicas_get_no_requests():
    seen = world(4, bounds=Bounds(0.1, None, 9))
    found = seen.look({0: (900, 0), 1: (20, 20), 2: (20, 20), 3: (20, 20)})
    assert len(found) == 3
    assert len(seen.out) == 2


def test_one_in_doubt_comes_back_while_its_only_sibling_is_gone():
    seen = world(2)
    seen.look({0: (40, 0), 1: (20, 20)})
    for is_up, out in ((False, set[int]()), (True, {1})):
        seen.servers[0] = replace(seen.servers[0], up=is_up)
        assert seen.look(said={1: SILENT}) == ()
        assert seen.out == out
    del seen.servers[0]
    seen.look(said={1: SILENT})
    assert seen.out == set()
    assert verdicts(seen.look(said={1: FAILED})) == [(1, Verdict.FAILED)]


def test_the_inference_decides():
    for answer, verdict in ((OURS, Verdict.PASSED), (FAILED, Verdict.FAILED)):
        seen = world(2)
        seen.look({0: (40, 0), 1: (20, 20)})
        assert seen.look(said={1: SILENT}) == ()
        assert seen.out == {1}
        assert verdicts(seen.look(said={1: answer})) == [(1, verdict)]
        assert seen.out == set()


def test_a_stranger_at_its_port_has_failed():
    seen = world(2)
    seen.look({0: (40, 0), 1: (20, 20)})
    assert verdicts(seen.look(said={1: Answer(Probe.STRANGER)})) == [(1, Verdict.FAILED)]


def test_a_model_that_rightly_answers_errors_is_asked_ever_more_rarely():
    seen = world(1)
    times: list[float] = []
    for _ in range(600):
        doubt = {index for index, one in seen.watched.items() if one.doubt is not None}
        found = seen.look({0: (20, 20)}, dict.fromkeys(doubt, OURS), after_s=10.0)
        times += [seen.now_s for one in found if one.verdict is Verdict.ASKED]
    pauses = [later - before for before, later in itertools.pairwise(times)]
    assert pauses[0] >= 60
    assert all(later >= 1.5 * before for before, later in itertools.pairwise(pauses))
    assert len(times) <= 8


def test_a_replica_that_answers_nothing_while_its_siblings_do_is_doubted():
    seen = world(2)
    for _ in range(int(FEWEST_SILENT_S) - 1):
        assert seen.look({0: (5, 0)}) == ()
    assert verdicts(seen.look({0: (5, 0)})) == [(1, Verdict.ASKED)]
    assert seen.out == {1}


def test_a_stream_that_goes_on_for_minutes_is_no_silence():
    """HAProxy counts its bytes every five seconds, and its answer once."""
    seen = world(2)
    for second in range(120):
        if second % 5 == 0:
            one = seen.servers[1]
            seen.servers[1] = replace(one, sent_bytes=one.sent_bytes + 90)
        assert seen.look({0: (5, 0)}) == ()
    while not (found := seen.look({0: (5, 0)})):
        pass
    assert verdicts(found) == [(1, Verdict.ASKED)]


def test_how_long_that_is_follows_from_what_requests_take():
    seen = world(2, bounds=Bounds(2.0, None, 3))
    for _ in range(2 * SERVICE_TIMES - 1):
        assert seen.look({0: (1, 0)}) == ()
    assert verdicts(seen.look({0: (1, 0)})) == [(1, Verdict.ASKED)]


def test_without_requests_no_silence_counts():
    seen = world(2, in_flight=0)
    assert not any(seen.look({0: (5, 0)}) for _ in range(40))


def test_a_long_look_counts_as_a_short_one():
    """The launcher may have slept meanwhile: nothing is known of that time."""
    seen = world(2)
    assert seen.look({0: (5, 0)}, after_s=400.0) == ()


def test_where_no_sibling_answers_a_slow_model_is_left_alone():
    seen = world(2)
    assert not any(seen.look() for _ in range(500))


def test_without_objective_and_deadline_the_gateway_s_own_limit_doubts_a_lone_silent_replica():
    seen = world(1)
    for _ in range(int(LONGEST_DEADLINE_S) - 1):
        assert seen.look() == ()
    assert verdicts(seen.look()) == [(0, Verdict.ASKED)]


@pytest.mark.parametrize(
    ("bounds", "after_s"),
    [
        (Bounds(0.1, None, 3, p95_s=0.4), FEWEST_SILENT_S),
        (Bounds(90.0, None, 3, p95_s=2.0), SERVICE_TIMES * 2.0),
        (Bounds(0.1, 30.0, 3, p95_s=2.0), 30.0),
        (Bounds(0.1, None, 3, p95_s=900.0), LONGEST_DEADLINE_S),
    ],
    ids=["at least", "times the objective", "deadline", "gateway's limit"],
)
def test_a_service_with_an_objective_has_a_lone_silent_replica_asked_sooner(
    bounds: Bounds, after_s: float
):
    seen = world(1, bounds=bounds)
    for _ in range(int(after_s) - 1):
        assert seen.look() == ()
    assert verdicts(seen.look()) == [(0, Verdict.ASKED)]
    assert seen.out == set()


def test_a_model_that_works_on_one_request_for_400_s_is_never_taken_out():
    """The inference waits behind that request; another replica starts beside it meanwhile."""
    seen = world(1, bounds=Bounds(0.1, None, 3, p95_s=0.4))
    while not seen.look():
        pass
    assert not seen.watched[0].is_outdated(seen.now_s + REPLACED_S - 1)
    assert seen.watched[0].is_outdated(seen.now_s + REPLACED_S)
    while seen.watched[0].silent_s < 400:
        assert seen.look(said={0: SILENT}) == ()
    assert verdicts(seen.look({0: (1, 0)}, {0: SILENT})) == [(0, Verdict.PASSED)]


def test_one_that_has_answered_nothing_for_longer_than_any_request_may_take_is_taken_out():
    seen = world(1, bounds=Bounds(0.1, None, 3, p95_s=0.4))
    while not seen.look():
        pass
    while seen.watched[0].silent_s < LONGEST_DEADLINE_S - 1:
        assert seen.look(said={0: SILENT}) == ()
    assert verdicts(seen.look(said={0: SILENT})) == [(0, Verdict.FAILED)]


def test_a_sibling_that_has_just_come_has_not_answered_yet():
    seen = world(1)
    for _ in range(40):
        seen.look()
    seen.servers[1] = replace(seen.servers[0], in_flight=0)
    assert not any(seen.look() for _ in range(3))


def test_a_service_with_a_deadline_has_a_lone_silent_replica_asked():
    seen = world(1, bounds=Bounds(0.1, 30.0, 3))
    for _ in range(29):
        assert seen.look() == ()
    assert verdicts(seen.look()) == [(0, Verdict.ASKED)]
    assert seen.out == set()
    for _ in range(int(ASKED_S) - 1):
        assert seen.look(said={0: SILENT}) == ()
    (found,) = seen.look(said={0: SILENT})
    assert found == Outlier(0, Verdict.FAILED, "it has answered nothing for 30 s, nor an inference")


def test_a_slow_inference_decides_nothing_before_a_request_must_have_been_answered():
    """A request of 400 s is allowed, also beside siblings that answer in milliseconds."""
    seen = world(2)
    while not seen.look({0: (5, 0)}):
        pass
    for _ in range(580):
        assert seen.look({0: (5, 0)}, {1: SILENT}) == ()
    while not (found := seen.look({0: (5, 0)}, {1: SILENT})):
        pass
    assert verdicts(found) == [(1, Verdict.FAILED)]


def test_another_replica_starts_beside_one_that_stays_in_doubt():
    seen = world(2)
    while not seen.look({0: (5, 0)}):
        pass
    assert not seen.watched[1].is_outdated(seen.now_s + REPLACED_S - 1)
    assert seen.watched[1].is_outdated(seen.now_s + REPLACED_S)


def test_a_silent_replica_that_answers_after_all_is_back():
    seen = world(2)
    while not seen.look({0: (5, 0)}):
        pass
    assert verdicts(seen.look({1: (1, 0)}, {1: SILENT})) == [(1, Verdict.PASSED)]


def test_another_run_and_counters_that_start_again_begin_from_nothing():
    seen = world(2)
    seen.look({0: (40, 0), 1: (9, 9)})
    seen.runs[1] = 60
    assert seen.look({0: (40, 0), 1: (9, 9)}) == ()
    seen.servers[1] = replace(seen.servers[1], answers=5, errors=5)
    assert seen.look({0: (40, 0)}) == ()
    assert seen.watched[1].recent == 0


def test_no_more_are_doubted_than_may_still_be_taken_away():
    seen = world(6, bounds=Bounds(0.1, None, 1))
    assert len(seen.look({0: (900, 0)} | dict.fromkeys(range(1, 6), (20, 20)))) == 1
    seen.bounds = Bounds(0.1, None, 0)
    seen.look(said=dict.fromkeys(seen.out, FAILED))
    assert seen.look() == ()


def test_a_service_loses_few_replicas_within_an_hour():
    assert removals_left((), 1, 5000.0) == FEWEST_REMOVALS
    assert removals_left((4000.0, 4100.0, 4200.0), 1, 5000.0) == 0
    assert removals_left((4000.0, 4100.0, 4200.0), 5, 5000.0) == 2
    assert removals_left((4000.0, 4100.0, 4200.0), 1, 4100.0 + SPAN_S) == 2


def hung_until_judged(
    seen: World, hung: int, deadline_s: int, in_flight: int
) -> tuple[Outlier, ...]:
    """The gateway ends the requests of one replica that answers nothing, and asks it in doubt."""
    begun_s, found = seen.now_s, ()
    while not any(one.verdict is not Verdict.ASKED for one in found):
        assert seen.now_s - begun_s < 2 * LONGEST_DEADLINE_S
        if int(seen.now_s) % deadline_s == 0:
            one = seen.servers[hung]
            ended = one.response_errors + in_flight
            seen.servers[hung] = replace(
                one, sent_bytes=one.sent_bytes + 198 * in_flight, response_errors=ended
            )
        siblings = {index: (5, 0) for index in seen.servers if index != hung}
        doubted = {index for index, one in seen.watched.items() if one.doubt is not None}
        found = seen.look(siblings, dict.fromkeys(doubted, SILENT))
    return found


@pytest.mark.parametrize(
    ("replicas", "bounds", "after_s"),
    [
        (2, Bounds(0.1, 60.0, 3), 60),
        (1, Bounds(0.1, 30.0, 3), 30 + ASKED_S),
        (1, Bounds(0.1, None, 3), LONGEST_DEADLINE_S + ASKED_S),
        (1, Bounds(0.1, 60.0, 3, p95_s=0.4), 60),
    ],
    ids=["beside a sibling", "lone, deadline", "lone, neither", "lone, both"],
)
def test_what_the_gateway_answers_in_its_place_does_not_speak_for_a_replica_that_hangs(
    replicas: int, bounds: Bounds, after_s: float
):
    """HAProxy counts the bytes of its own 504 as the server's (2.6.12)."""
    hung = replicas - 1
    seen = world(replicas, in_flight=2, bounds=bounds)
    begun_s = seen.now_s
    found = hung_until_judged(seen, hung, int(bounds.longest_s), in_flight=2)
    assert verdicts(found) == [(hung, Verdict.FAILED)]
    assert seen.now_s - begun_s == pytest.approx(after_s, abs=2)


def test_a_stream_goes_on_though_other_requests_of_its_replica_get_no_answer():
    seen = world(2)
    for second in range(120):
        one = seen.servers[1]
        more = {"response_errors": one.response_errors + 1} if second % 30 == 0 else {}
        seen.servers[1] = replace(one, sent_bytes=one.sent_bytes + 90, **more)
        assert seen.look({0: (5, 0)}) == ()
