"""Tests Triton's statistics: what is read of replicas, added up, and answered by both protocols."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from slicewise.launcher.rules.engines import triton_statistics
from slicewise.launcher.rules.engines.statistics import (
    MOST_KEYS,
    Answered,
    Counts,
    followed,
    lasting,
    together,
)
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.rules.engines.triton_statistics import (
    TritonCounts,
    by_grpc,
    by_http,
    counted,
)

KIND = TritonCounts()


def times(count: int) -> dict[str, int]:
    return {"count": count, "ns": 1000 * count}


def model(name: str, count: int, version: str = "1", **change: object) -> dict[str, Any]:
    """A model's statistics as Triton 2.59 tells them."""
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    inference = {one: times(count) for one in (*names, "cache_hit", "cache_miss")}
    computed = {one: times(count) for one in ("compute_input", "compute_infer", "compute_output")}
    response = {one: times(count) for one in ("compute_infer", "compute_output", "success", "fail")}
    return {
        "name": name,
        "version": version,
        "last_inference": 100 + count,
        "inference_count": count,
        "execution_count": count,
        "inference_stats": inference,
        "response_stats": {"0": {**response, "empty_response": times(0), "cancel": times(0)}},
        "batch_stats": [{"batch_size": 1, **computed}],
        "memory_usage": [{"type": "GPU", "id": 0, "byte_size": 7}],
        **change,
    }


def said(*models: dict[str, Any]) -> bytes:
    return json.dumps({"model_stats": models}).encode()


def sums(*answers: bytes) -> Counts:
    return together(map(counted, answers), KIND)


def told(path: str, counts: Counts) -> dict[str, Any]:
    answer = by_http(path, counts)
    assert answer.status == 200
    return dict(json.loads(answer.body))


def test_one_replica_s_statistics_are_told_as_it_tells_them():
    one = [model("a", 3), model("b", 0, "2", batch_stats=[], response_stats={}, memory_usage=[])]
    assert told("/v2/models/stats", counted(said(*one))) == {"model_stats": one}


def test_counts_and_times_are_added_up_and_the_last_inference_is_the_latest():
    found = told("/v2/models/a/stats", sums(said(model("a", 3)), said(model("a", 4))))
    total = model("a", 7, last_inference=104)
    total["memory_usage"][0]["byte_size"] = 14
    assert found == {"model_stats": [total]}


def test_batches_and_responses_are_added_up_one_by_one():
    large = {"batch_size": 16, "compute_infer": times(5)}
    one = said(model("a", 1, batch_stats=[large, {"batch_size": 4, "compute_infer": times(2)}]))
    two = said(model("a", 1, batch_stats=[large], response_stats={"10": {"success": times(1)}}))
    (found,) = told("/v2/models/a/stats", sums(one, two))["model_stats"]
    assert [(b["batch_size"], b["compute_infer"]) for b in found["batch_stats"]] == [
        (4, times(2)),
        (16, times(10)),
    ]
    assert {key: of["success"] for key, of in found["response_stats"].items()} == {
        "0": times(1),
        "10": times(1),
    }


def test_a_client_asks_for_one_model_or_one_version():
    counts = counted(said(model("a", 1), model("a", 2, "2"), model("b", 3)))

    def named(path: str) -> list[tuple[str, str]]:
        return [(one["name"], one["version"]) for one in told(path, counts)["model_stats"]]

    assert named("/v2/models/a/stats") == [("a", "1"), ("a", "2")]
    assert named("/v2/models/a/versions/2/stats") == [("a", "2")]
    assert named("/v2/models/stats") == [("a", "1"), ("a", "2"), ("b", "1")]
    unknown = by_http("/v2/models/c/stats", counts)
    assert unknown.status == 400
    assert json.loads(unknown.body) == {"error": "Request for unknown model: 'c' is not found"}


def called(counts: Counts, **asked: str) -> service_pb2.ModelStatisticsResponse:
    message = service_pb2.ModelStatisticsRequest(**asked).SerializeToString()
    answer = by_grpc(b"\0" + len(message).to_bytes(4, "big") + message, counts)
    assert answer.status == 0
    assert answer.body[:5] == b"\0" + (len(answer.body) - 5).to_bytes(4, "big")
    return service_pb2.ModelStatisticsResponse.FromString(answer.body[5:])


def test_grpc_s_message_says_the_same_as_json():
    counts = sums(said(model("a", 300), model("b", 2**40)), said(model("a", 4)))
    found = MessageToDict(called(counts), preserving_proto_field_name=True)

    def plain(value: Any) -> Any:
        """Without zeros, which a message leaves out; its large numbers are texts in JSON."""
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items() if one != 0}
        if isinstance(value, list):
            return [plain(one) for one in value]
        return str(value)

    assert plain(found) == plain(told("/v2/models/stats", counts))
    (one,) = called(counts, name="a", version="1").model_stats
    assert one.inference_stats.success.count == 304


def test_grpc_is_told_what_is_wrong_with_its_question():
    counts = counted(said(model("a", 1)))
    message = service_pb2.ModelStatisticsRequest(name="c").SerializeToString()
    assert by_grpc(b"\0\0\0\0\3" + message, counts).status == 3
    assert by_grpc(b"\1\0\0\0\3" + message, counts).status == 12
    for wrong in (b"\x0a\xff", b"\x08\x01", b"\xff" * 20, b"\x0a\x01\xff"):
        assert by_grpc(b"\0\0\0\0\0" + wrong, counts).status == 3
    assert by_grpc(b"", counts).status == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        said({"name": "a"}),
        said(model("a", -1)),
        said(model("a", 2**64)),
        said(model("a", 1, batch_stats={})),
        said(model("\ud800", 1)),
        said(*[{"name": "a", "version": "1"}] * 501),
    ],
)
def test_what_is_no_statistics_is_no_count(answer: bytes):
    with pytest.raises((TypeError, ValueError)):
        counted(answer)


def test_what_is_not_known_is_left_out():
    newer = model("a", 1, inference_stats={"success": times(1), "newer": times(9)}, newer=[1])
    (found,) = told("/v2/models/a/stats", counted(said(newer)))["model_stats"]
    assert "newer" not in found
    assert "newer" not in found["inference_stats"]


def test_no_count_becomes_less_and_memory_ends_with_its_replica():
    before, now = counted(said(model("a", 5))), counted(said(model("a", 2, memory_usage=[])))
    kept = followed(before, now, KIND)
    assert kept["a", "1", "inference_count"] == 5
    assert ("a", "1", "memory_usage", "GPU", "0") not in kept
    assert followed({}, before, KIND) == before
    ended = lasting(before, KIND)
    assert ended.keys() == before.keys() - {("a", "1", "memory_usage", "GPU", "0")}


def test_sums_stay_what_clients_can_read_and_keep():
    largest = counted(said(model("a", 1, inference_count=2**64 - 1)))
    assert together([largest, largest], KIND)["a", "1", "inference_count"] == 2**64 - 1
    many = [
        {(str(n), "1", "inference_count"): 1 for n in range(at, at + 30_000)} for at in (0, 30_000)
    ]
    assert len(together(many, KIND)) == MOST_KEYS


def test_what_one_replica_says_stays_bounded_however_often_it_says_something_new():
    """A tenant's replica told 4,900 other batch sizes at each look: the launcher stood for 24 s."""
    known: Counts = {}
    for look in range(4):
        sizes = range(4_900 * look, 4_900 * (look + 1))
        batches = [{"batch_size": one, "compute_infer": {"count": 1}} for one in sizes]
        now = counted(said(model("a", look + 1, batch_stats=batches)))
        assert len(now) <= MOST_KEYS
        known = followed(known, now, KIND)
        assert len(known) <= MOST_KEYS
        # What was known goes on.
        assert known["a", "1", "inference_count"] == look + 1
    assert len(known) == MOST_KEYS
    many = [{"batch_size": one, "compute_infer": times(1)} for one in range(3_900)]
    assert len(counted(said(model("a", 1, batch_stats=many)))) == MOST_KEYS


class Watched(dict[tuple[str, ...], int]):
    """Counts that know how many of them were read, by a look at all or at one."""

    read = 0

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for key in super().__iter__():
            self.read += 1
            yield key

    def items(self) -> Any:
        for key in self:
            yield key, super().__getitem__(key)


def test_each_count_is_read_once_however_many_batches_there_are():
    of = Watched({("batch_stats", str(one), "compute_infer", "count"): 1 for one in range(5_000)})
    parts = triton_statistics._by_part(of)
    assert len(parts["batch_stats"]) == 5_000
    assert list(parts["batch_stats"])[:2] == ["0", "1"]
    assert of.read == 5_000
    counts = {("a", "1", *key): count for key, count in of.items()}
    (shown,) = told("/v2/models/a/stats", counts)["model_stats"]
    assert [one["batch_size"] for one in shown["batch_stats"]] == list(range(5_000))
    assert len(called(counts).model_stats[0].batch_stats) == 5_000


def test_inferences_of_all_versions_are_added_up() -> None:
    def model(name: str, version: str, failed: int) -> dict[str, object]:
        times = {"fail": {"count": failed, "ns": 7}, "success": {"count": 9, "ns": 1}}
        return {"name": name, "version": version, "inference_stats": times}

    stats = [model("a", "1", 2), model("a", "2", 3), model("b", "1", 0)]
    body = json.dumps({"model_stats": stats}).encode()
    assert Triton().answered(body) == {"a": Answered(18, 5), "b": Answered(9, 0)}
    with pytest.raises(TypeError):
        Triton().answered(b"[]")
