"""Tests the formats of request traces."""

import json
import lzma
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.simulation.history.requests import RequestTrace, read_requests
from slicewise.simulation.rules.history.traced_request import TracedRequest


def read(folder: Path, text: str) -> RequestTrace:
    path = folder / "trace.xz"
    path.write_bytes(lzma.compress(text.encode()))
    return read_requests(path)


def test_azure(tmp_path: Path):
    trace = read(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:48.1805900,7,100\n"
        "2023-11-16 18:15:46.6805900,5000,0\n",
    )
    assert [one._replace(at_s=round(one.at_s, 6)) for one in trace.requests] == [
        TracedRequest(0.0, 5000, 0),
        TracedRequest(1.5, 7, 100),
    ]


def test_mooncake(tmp_path: Path):
    trace = read(
        tmp_path,
        '{"timestamp": 3000, "input_length": 700, "output_length": 500, "hash_ids": [0, 14]}\n'
        '{"timestamp": 9000, "input_length": 1, "output_length": 2}\n'
        '{"timestamp": 9000, "input_length": -1, "output_length": 2}\n'
        '{"timestamp": 9000\n'
        "[1, 2]\n",
    )
    assert trace.requests == [
        TracedRequest(0.0, 700, 500, None, (0, 14)),
        TracedRequest(6.0, 1, 2),
    ]
    assert trace.unread == 3
    assert "line 3: no count: -1" in trace.first_unread
    assert (trace.block_tokens, trace.assumed) == (512, ())


BAILIAN = (
    '{{"chat_id": {0}, "parent_chat_id": -1, "timestamp": {1}, "input_length": 5, "output_length":'
    ' 1, "type": "text", "turn": 1, "hash_ids": [{0}]}}\n'
)


def test_bailian_has_seconds_and_blocks_of_16(tmp_path: Path):
    trace = read(tmp_path, "".join(BAILIAN.format(n, 30.1 * n) for n in range(3)))
    assert [round(one.at_s, 3) for one in trace.requests] == [0, 30.1, 60.2]
    assert (trace.block_tokens, trace.assumed, trace.unread) == (16, (), 0)


def test_a_long_prompt_names_many_blocks(tmp_path: Path):
    ids = list(range(100_000, 165_000))
    line = json.dumps({"chat_id": 1, "timestamp": 1, "input_length": 1_040_000} | {"hash_ids": ids})
    trace = read(tmp_path, line[:-1] + ', "output_length": 1}\n')
    assert (len(trace.requests[0].blocks), trace.unread) == (65_000, 0)


def test_a_line_of_another_form_is_not_read(tmp_path: Path):
    """Its times have another unit."""
    mooncake = '{"timestamp": 3000, "input_length": 7, "output_length": 5, "hash_ids": [0]}\n'
    trace = read(tmp_path, BAILIAN.format(0, 1.5) + mooncake)
    assert (len(trace.requests), trace.unread) == (1, 1)
    assert "line 2: a form other than" in trace.first_unread


def test_json_of_a_form_that_nobody_knows_is_refused(tmp_path: Path):
    line = '{"timestamp": 3, "input_length": 7, "output_length": 5, "arrival_rate": 2}\n'
    with pytest.raises(InvalidInputError, match="no form of traces has a key arrival_rate"):
        read(tmp_path, line)
    with pytest.raises(InvalidInputError, match="not one object in each line"):
        read(tmp_path, f"[{line}]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"timestamp": 3000, "input_length": 7, "output_length": 5}\n', "taken for milliseconds"),
        ("timestamp,input_length,output_length\n30,7,5\n", "taken for seconds"),
        ("5\n7\n", "taken for seconds"),
        ("arrival_s,service_s\n30,7\n", ""),
    ],
)
def test_a_unit_that_no_name_says_is_assumed_and_said(tmp_path: Path, text: str, said: str):
    assert said in " ".join(read(tmp_path, text).assumed)
    assert bool(said) == bool(read(tmp_path, text).assumed)


@pytest.mark.parametrize(
    "head",
    ["arrived_at,num_prefill_tokens,num_decode_tokens", "Timestamp,Request tokens,Response tokens"],
)
def test_columns_of_other_traces(tmp_path: Path, head: str):
    trace = read(tmp_path, f"{head}\n100,2,3\n")
    assert trace.requests == [TracedRequest(0.0, 2, 3)]


@pytest.mark.parametrize("head", ["", "arrival_s,service_s\n"])
def test_seconds_of_service(tmp_path: Path, head: str):
    trace = read(tmp_path, f"{head}100,2.5\n102.5,1\n")
    assert trace.requests == [TracedRequest(0.0, service_s=2.5), TracedRequest(2.5, service_s=1.0)]


def test_times_alone(tmp_path: Path):
    assert [one.service_s for one in read(tmp_path, "5\n7\n").requests] == [None, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("hello\n", "line 1: no column with times"),
        ("hel\rlo\n", "line 1: no column with times"),
        # Its second column is none of seconds.
        ("came_at,prompt\n1.5,500\n", "line 1: no column with times, such as arrival_s"),
        ("arrival_s,other\n1,2\n", "no column with tokens"),
        ("{}\n", "^[^,]*, line 1: no column 'input_length'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2.5,3\n", "^[^,]*, line 2: no count: 2.5"),
        ("1," * 600_000, "longer than"),
        ("0.0,1.2,0.9,Gamma\n", "line 1: 4 numbers in a line, and no names of columns"),
        ("timestamp,service_s\n1715472000000,3\n", "no number of seconds: 1715472000000"),
    ],
)
def test_what_is_no_trace_says_so(tmp_path: Path, text: str, said: str):
    with pytest.raises(InvalidInputError, match=said):
        read(tmp_path, text)


def test_a_line_of_deep_json_costs_only_itself(tmp_path: Path):
    line = '{"timestamp": 1, "input_length": 1, "output_length": 2}\n'
    trace = read(tmp_path, line + '{"a":' * 9000 + "\n" + line)
    assert (len(trace.requests), trace.unread) == (2, 1)


def test_counts_are_spread_over_the_time_since_the_count_before(tmp_path: Path):
    trace = read(tmp_path, "arrival_s,requests\n160,2\n100,0\n220,0.5\n280,0.5\n340,-1\n")
    assert [one.at_s for one in trace.requests] == [0.0, 30.0, 135.0]
    assert (trace.begin_s, trace.unread) == (115.0, 1)
    assert "spread evenly" in trace.assumed[0]


def test_more_requests_than_anybody_counts_are_not_read(tmp_path: Path):
    trace = read(tmp_path, "arrival_s,requests\n60,1e9\n120,1\n")
    assert (len(trace.requests), trace.unread) == (1, 1)
