"""Tests measurements: windows, steadiness, figures, messages."""

import pytest

from slicewise.launcher.rules.profiling.figures import (
    MARK,
    Begun,
    MeasuredWindow,
    Point,
    ProfileTask,
    failed,
    is_steady,
    measured,
    message_text,
    messages,
)


def window(answers: int, seconds: float = 1.0, latency_us: int = 1_000) -> MeasuredWindow:
    return MeasuredWindow((latency_us,) * answers, int(seconds * 1_000_000))


def of_one(*windows: MeasuredWindow) -> Point:
    return measured(1, 1, windows, windows)


class TestFigure:
    def test_requests_are_inferences_times_their_batch(self) -> None:
        point = measured(8, 2, [window(1)], [window(100), window(100)])
        assert (point.throughput_mrps, point.samples, point.processes) == (800_000, 201, 2)

    def test_latency_is_that_without_waiting_throughput_that_without_a_pause(self) -> None:
        point = measured(1, 1, [window(50, 1, 20)] * 2, [window(90, 1, 40)] * 2)
        assert (point.throughput_mrps, point.latency_us) == (90_000, 20)

    def test_only_the_last_two_windows_count(self) -> None:
        point = of_one(window(1, latency_us=9_999), window(50, 0.5), window(52, 0.5))
        assert (point.throughput_mrps, point.latency_us, point.samples) == (102_000, 1_000, 204)

    def test_its_latency_is_that_in_which_95_of_100_are_answered(self) -> None:
        assert of_one(MeasuredWindow(tuple(range(100, 0, -1)), 1_000_000)).latency_us == 95
        assert of_one(MeasuredWindow((7,), 1_000_000)).latency_us == 7

    def test_it_is_steady_if_both_are(self) -> None:
        still, shaky = [window(100)] * 2, [window(100), window(90)]
        found = [measured(1, 1, *both).steady for both in ((still, still), (still, shaky))]
        assert found == [True, False]
        assert not measured(1, 1, shaky, still).steady

    @pytest.mark.parametrize(
        ("answers", "steady"),
        [([100], False), ([100, 95], True), ([95, 100], True), ([100, 94], False)],
    )
    def test_it_is_steady_within_5_percent_of_the_larger_one(
        self, answers: list[int], steady: bool
    ) -> None:
        assert is_steady([window(count) for count in answers]) is steady

    def test_only_neighbours_are_compared(self) -> None:
        assert not is_steady([window(100), window(100), window(80)])
        assert is_steady([window(10), window(100), window(101)])


class TestMessages:
    SENT = (Begun(number=1, batch=4, processes=2), failed(4, 2, "no"), of_one(window(9)))

    def test_they_are_found_between_what_others_print(self) -> None:
        output = "I1122 Triton says" + "".join(map(message_text, self.SENT)) + "W1122 more"
        assert tuple(messages(output)) == self.SENT

    def test_one_that_is_not_written_whole_yet_is_not_there_yet(self) -> None:
        assert tuple(messages(message_text(self.SENT[0]).rstrip("\n"))) == ()

    @pytest.mark.parametrize(
        "line",
        [
            f"{MARK}{{}}",
            f"{MARK}not JSON",
            f'{MARK}{{"batch":1,"processes":1,"throughput_mrps":-1}}',
            f'{MARK}{{"batch":1,"processes":1,"more":1}}',
            f"the model prints {message_text(SENT[0]).strip()}",
        ],
    )
    def test_what_only_looks_like_one_is_left_out(self, line: str) -> None:
        assert tuple(messages(f"{line}\n")) == ()

    def test_a_reason_is_one_short_line_that_a_terminal_takes(self) -> None:
        point = failed(1, 1, "out of\nmemory \x1b[31m" + "!" * 2_000)
        assert point.reason.startswith("out of memory [31m!!!")
        assert (len(point.reason), point.throughput_mrps) == (1_000, 0)
        assert tuple(messages(message_text(point))) == (point,)


class TestWork:
    def test_every_batch_with_every_number_of_processes(self) -> None:
        assert ProfileTask(model="m", batches=(1, 2, 4), seconds=10).points == 3
        assert ProfileTask(model="m", batches=(1, 2, 4), processes=(1, 2), seconds=10).points == 6

    def test_its_time_limit_has_room_for_slow_points_and_loading(self) -> None:
        # Two starts of 300 s at most, one point of at most 10 s, twice.
        assert ProfileTask(model="m", batches=(1,), seconds=10).time_limit_min == 11
        assert (
            ProfileTask(model="m", batches=(1,), processes=(1, 2), seconds=60).time_limit_min == 19
        )

    def test_a_job_gets_it_as_it_is(self) -> None:
        work = ProfileTask(model="m", batches=(1, 2), processes=(3,), seconds=1.5, data="/a b;$(x)")
        assert ProfileTask.model_validate_json(work.model_dump_json()) == work


def test_a_point_has_a_figure_or_a_reason() -> None:
    point = Point(batch=1, processes=1, throughput_mrps=5, latency_us=1, samples=1, steady=True)
    assert point.reason == ""
