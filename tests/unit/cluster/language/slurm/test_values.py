import tracemalloc
from collections.abc import Callable

import pytest

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.slurm import values
from slicewise.cluster.language.slurm.accounting import parse_runs
from slicewise.cluster.language.slurm.parse import parse_version


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("0-3,7", (0, 1, 2, 3, 7)),
        ("3-4,7%4", (3, 4, 7)),
        ("0-8:4,11%2", (0, 4, 8, 11)),
        ("21001-21003,21005", (21001, 21002, 21003, 21005)),
        ("", ()),
    ],
)
def test_lists_of_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert values.numbers(text) == numbers


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "1,,a", "0-3...", "0-8:0", "0-4000000,0-4000000"]
)
def test_other_text_is_no_list_of_numbers(text: str) -> None:
    with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
        values.numbers(text)


def test_numbers_are_written_shortest() -> None:
    assert values.numbers_text(frozenset({5, 0, 2, 1})) == "0-2,5"
    assert values.numbers_text(frozenset({7})) == "7"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu01", ("gpu01",)),
        ("gpu[01-03,07],login", ("gpu01", "gpu02", "gpu03", "gpu07", "login")),
        ("r[0-1]n[09-10]-ib", ("r0n09-ib", "r0n10-ib", "r1n09-ib", "r1n10-ib")),
        ("gpu[098-101]", ("gpu098", "gpu099", "gpu100", "gpu101")),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_host_lists(text: str, hosts: tuple[str, ...]) -> None:
    assert values.hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n" + "[0-4194303]" * 8,
        "n" + "[0-9]" * 8,
        "n[0-9999][0-99]x[0-9]",
        ",".join(f"a{number}[0-65535]" for number in range(5)),
        "n[1-2]" + "x" * 256,
        "n[0-4194303]",
        "n" + "[1]" * 40,
        "n[1-" + "9" * 5000 + "]",
    ],
)
def test_more_hosts_than_a_cluster_has_are_refused_before_one_is_made(text: str) -> None:
    """Eight brackets took all memory."""
    tracemalloc.start()
    try:
        with pytest.raises(OutsideError, match=r"list of (hosts|numbers)"):
            values.hosts(text)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_empty_range_makes_nothing_of_the_others() -> None:
    assert values.hosts("n[2-1]" + "[0-262143]" * 8) == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00", 0),
        ("10:00", 600),
        ("1:00:00", 3600),
        ("1-12:00:30", 129_630),
        ("12:34.567", 754),
        ("INVALID", None),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("NOT_SET", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert values.duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("1795225280", 1_795_225_280),
        ("2026-11-21T01:41:20", 1_795_225_280),
        ("2026-11-21T01:41:20Z", 1_795_225_280),
        ("2026-11-21T03:41:20+0200", 1_795_225_280),
        ("2026-11-20T20:41:20-05:00", 1_795_225_280),
        ("N/A", None),
        ("Unknown", None),
        ("None", None),
    ],
)
def test_times(text: str, unix_s: int | None) -> None:
    assert values.time_s(text) == unix_s


def test_times_are_written_in_utc() -> None:
    assert values.time_text(1_795_225_280) == "2026-11-21T01:41:20"


def test_unreadable_values_are_failures() -> None:
    for read, text in (
        (values.time_s, "tomorrow"),
        (values.duration_s, "soon"),
        (values.limits, "billing=many"),
    ):
        with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
            read(text)


def test_limits_and_tres() -> None:
    assert values.limits("billing=3000,mem=500G,gres/gpu:1g.10gb=5") == {
        "billing": 3000,
        "mem": 512_000,
        "gres/gpu:1g.10gb": 5,
    }
    assert values.limits("") == {}
    assert values.tres("(null)") == {}


ROW = {"CPUAlloc": "4", "CPUTot": "16", "RealMemory": "16000", "AllocMem": "400", "Owner": "N/A"}
BLOCKED = [
    ({}, ""),
    ({"CPUAlloc": "16"}, "all of its CPUs are taken"),
    ({"CPUAlloc": "15"}, ""),
    # Two of its CPUs are Slurm's own.
    ({"CPUAlloc": "14", "CPUEfctv": "14"}, "all of its CPUs are taken"),
    ({"AllocMem": "16000"}, "all of its memory is taken"),
    ({"AllocMem": "0", "RealMemory": "0"}, ""),
    ({"Owner": "alice(61001)"}, "it is kept for one user"),
    ({"MCS_label": "secret"}, "it is kept for one security label"),
    ({"MCS_label": "N/A"}, ""),
    ({"CPUAlloc": "all"}, ""),
    ({"CPUAlloc": "", "AllocMem": "-1"}, ""),
    ({"CPUTot": "\u0664"}, ""),
]


@pytest.mark.parametrize(("changes", "why"), BLOCKED)
def test_a_node_without_anything_left(changes: dict[str, str], why: str) -> None:
    assert values.node_blocked(ROW | changes) == why


def test_a_node_of_which_slurm_says_nothing_is_not_blocked() -> None:
    assert values.node_blocked({}) == ""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:8", 8),
        ("gpu:8(S:0-1),shard:16", 8),
        ("craynetwork:4,gpu:2,gpu:3", 5),
        ("gpu:a100:8(S:0)", 0),
        ("gpu:1g.10gb:7,gpu:pad7:0", 0),
        ("(null)", 0),
        ("", 0),
    ],
)
def test_gpus_without_a_type_are_counted_apart(text: str, count: int) -> None:
    assert values.untyped_gpus(text) == count


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("gpu:a100:1,shard:a100:8", {"shard": 8}),
        ("gpu:2(S:0-1),shard:16(S:0-1)", {"shard": 16}),
        ("shard:a100:8,shard:h200:4,mps:100", {"shard": 12, "mps": 100}),
        ("gpu:shard:2,xshard:2", {}),
    ],
)
def test_parts_of_shared_gpus(text: str, counts: dict[str, int]) -> None:
    assert values.shared_counts(text) == counts


DIGITS = "9" * 5000
"""More than Python makes a number of: it raises ValueError, which is no error with a code."""


@pytest.mark.parametrize(
    "read",
    [
        values.whole,
        values.numbers,
        values.time_s,
        values.duration_s,
        lambda text: values.gpu_counts(f"gpu:1g.10gb:{text}"),
        lambda text: values.limits(f"billing={text}"),
        lambda text: values.limits(f"mem={text}P"),
        lambda text: values.tres(f"cpu={text}"),
        lambda text: values.weights(f"CPU={text * 20}"),
        lambda text: values.hosts(f"n[{text}]"),
        parse_version,
    ],
)
@pytest.mark.parametrize("digits", [DIGITS, DIGITS[:4000], DIGITS[:19]])
def test_a_number_of_thousands_of_digits_is_unreadable(
    read: Callable[[str], object], digits: str
) -> None:
    with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
        read(digits)


def test_a_run_with_such_a_number_costs_that_run_only() -> None:
    line = "{0}|{0}|olga|vision|gpu|100|200|COMPLETED|{1}|cpu=1||normal\n"
    text = line.format("1", "60") + line.format(DIGITS, "60") + line.format("3", DIGITS)
    told: list[object] = []
    runs = parse_runs(text, 0, told.append)
    # A time limit of no number is one of Slurm's words.
    assert [(run.job_id, run.time_limit_s) for run in runs] == [(1, 3600), (3, None)]
    assert len(told) == 1
