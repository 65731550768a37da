"""Tests figures of models that make tokens: windows, percentiles, servers that never start."""

import pytest

from slicewise.launcher.rules.profiling.figures import failed, message_text, messages
from slicewise.launcher.rules.profiling.token_figures import (
    NOT_STARTED,
    Stream,
    TokenTask,
    TokenWindow,
    cannot,
    explained,
    is_steady,
    measured,
)

SECOND = 1_000_000


def stream(first_ms: int = 100, all_ms: int = 1_090, output_tokens: int = 100) -> Stream:
    return Stream(first_ms * 1000, all_ms * 1000, 50, output_tokens)


def window(answers: int, duration_us: int = SECOND, **change: int) -> TokenWindow:
    return TokenWindow((stream(**change),) * answers, duration_us)


def test_what_a_point_says() -> None:
    point = measured("50+100", 4, [window(1), window(4), window(4)])
    assert (point.batch, point.processes, point.samples, point.steady) == (4, 1, 8, True)
    assert (point.throughput_mrps, point.latency_us) == (4_000, 1_090_000)
    figures = point.tokens
    assert figures is not None
    assert (figures.load, figures.prompt_tokens, figures.output_tokens) == ("50+100", 50, 100)
    assert figures.output_mtps == 400_000
    assert (figures.ttft_p50_us, figures.ttft_p99_us) == (100_000, 100_000)
    # 990 ms for the 99 tokens after the first one.
    assert (figures.tpot_p50_us, figures.tpot_p99_us) == (10_000, 10_000)
    assert tuple(messages(message_text(point))) == (point,)


def test_its_percentiles_are_those_of_requests() -> None:
    streams = tuple(stream(first_ms=number, all_ms=number + 990) for number in range(100, 0, -1))
    figures = measured("", 1, [TokenWindow(streams, SECOND)]).tokens
    assert figures is not None
    assert (figures.ttft_p50_us, figures.ttft_p99_us) == (50_000, 99_000)


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    figures = measured("", 1, [window(2, output_tokens=1)]).tokens
    assert figures is not None
    assert (figures.output_mtps, figures.tpot_p50_us, figures.tpot_p99_us) == (2_000, 0, 0)


def test_answers_without_a_text_that_is_known_say_nothing_of_the_time_between_tokens() -> None:
    without = stream(first_ms=1_090)
    figures = measured("", 1, [TokenWindow((without,) * 9 + (stream(),), SECOND)]).tokens
    assert figures is not None
    assert (figures.tpot_p50_us, figures.tpot_p99_us) == (10_000, 10_000)


@pytest.mark.parametrize(
    ("answers", "steady"), [([100], False), ([100, 95], True), ([100, 94], False)]
)
def test_it_is_steady_by_its_tokens(answers: list[int], steady: bool) -> None:
    assert is_steady([window(count) for count in answers]) is steady


TASK = TokenTask(model="m", concurrencies=(1, 8), prompt_tokens=512, output_tokens=64, seconds=30)


def test_its_time_limit_has_room_for_slow_points_and_starts() -> None:
    assert (TASK.points, TASK.window_s, TASK.time_limit_min) == (2, 6, 19)


def test_a_server_has_the_slots_of_the_point_or_of_all_points() -> None:
    assert [TASK.slots(one, each=True) for one in TASK.concurrencies] == [1, 8]
    assert [TASK.slots(one, each=False) for one in TASK.concurrencies] == [8, 8]


def test_other_requests_are_another_load() -> None:
    assert TASK.load(None) == "512+64"
    assert TASK.load('{"prompt": "a"}') == TASK.load('{"prompt": "a"}')
    assert TASK.load('{"prompt": "a"}') != TASK.load('{"prompt": "b"}')
    assert TASK.load("x").endswith("+64")


def test_a_job_gets_it_as_it_is() -> None:
    assert TokenTask.model_validate_json(TASK.model_dump_json()) == TASK


NEVER = [cannot("512+64", one, NOT_STARTED) for one in (1, 8)]


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
        "ValueError: No available memory for the cache blocks.",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "E llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    ],
)
def test_a_server_that_ends_for_want_of_memory_says_so_of_all_points(line: str) -> None:
    found = list(explained(NEVER, f"starting\n{line}\nended\n"))
    assert [(one.batch, one.reason) for one in found] == [(1, line), (8, line)]
    assert {one.tokens.load for one in found if one.tokens} == {"512+64"}


def test_another_failed_start_says_nothing_of_a_point() -> None:
    measured_too = failed(1, 1, "full")
    assert list(explained([*NEVER, measured_too], "vllm: command not found")) == [measured_too]
