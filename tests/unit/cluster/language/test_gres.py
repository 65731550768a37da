import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import (
    GpuRequest,
    gpu_types_of_tres,
    gres_text,
    parse_gpu_requests,
    parse_shared,
    parse_tres,
    plain_gres,
    shared_gpus,
    tres_name,
    with_type,
)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("gres:gpu:1g.10gb:1", [("1g.10gb", 1)]),
        ("gres/gpu:1g.10gb:1", [("1g.10gb", 1)]),
        ("gres/gpu:1g.10gb=2", [("1g.10gb", 2)]),
        ("gres/gpu=2", [(None, 2)]),
        ("gpu:1g.10gb:3", [("1g.10gb", 3)]),
        ("gpu:1g.10gb", [("1g.10gb", 1)]),
        ("gpu:2", [(None, 2)]),
        ("gres:gpu", [(None, 1)]),
        ("gpu", [(None, 1)]),
        ("gres:gpu:1g.10gb:2, gres:gpu:3g.40gb:1", [("1g.10gb", 2), ("3g.40gb", 1)]),
        ("gres/nic:1,gres/gpu:a100:1", [("a100", 1)]),
        ("gres/gpumem:1,license:gpu", []),
        ("", []),
    ],
)
def test_requests_of_every_version(text: str, requests: list[tuple[str | None, int]]) -> None:
    assert parse_gpu_requests(text) == tuple(GpuRequest(*request) for request in requests)


UNREADABLE = [
    "gpu:a:b",
    "gpu:a:1:2",
    "gpu::1",
    "gpu:",
    "gpu:1g.10gb:-1",
    "gpu:+1",
    "gres:gpu: 1",
    "gpu:1g.10gb:+1",
    "gpu:1k",
    "gres:gpu:2M",
    "gpu:_a:1",
    "gpu:.:1",
    "gpu:a100:" + "9" * 5000,
    "gpu:" + "9" * 5000,
    "gpu:\u0661",
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable_requests_say_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"gpu:1g\.10gb:1.*\[SW-GRES\]"):
        parse_gpu_requests(text)


@pytest.mark.parametrize("request_", [GpuRequest("1g.10gb", 2), GpuRequest(None, 3)])
def test_text_reads_back(request_: GpuRequest) -> None:
    assert parse_gpu_requests(gres_text(request_)) == (request_,)


def test_tres() -> None:
    tres = parse_tres("cpu=1,mem=100M,billing=2000,gres/gpu=2,gres/gpu:1g.10gb=2")
    assert tres["billing"] == "2000"
    assert gpu_types_of_tres(tres) == {"1g.10gb": 2}
    assert parse_tres("") == {}


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("gres:gpu:auto:2", "gres:gpu:a.1:2"),
        ("gres/gpu=1", "gres/gpu:a.1=1"),
        ("gres/gpu:auto=1", "gres/gpu:a.1=1"),
        ("gpu:3", "gpu:a.1:3"),
        ("gpu", "gpu:a.1:1"),
        ("gres:gpu:auto", "gres:gpu:a.1:1"),
        ("gres:nic:1, gres:gpu:2 ,license:gpu", "gres:nic:1, gres:gpu:a.1:2 ,license:gpu"),
        ("gpu:1g.10gb:1,gpu:automatic:1,gpumem:1", "gpu:1g.10gb:1,gpu:automatic:1,gpumem:1"),
        ("", ""),
    ],
)
def test_a_type_comes_where_none_was_and_nothing_else_changes(text: str, typed: str) -> None:
    assert with_type(text, "a.1") == typed


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("gres:gpu:1g.10gb:1,gres:nic:2", "gpu:1g.10gb:1,nic:2"),
        ("gres/gpu:1g.10gb:1", "gpu:1g.10gb:1"),
        ("gpu:1", "gpu:1"),
    ],
)
def test_without_slurms_prefix(text: str, plain: str) -> None:
    assert plain_gres(text) == plain


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gres:shard:2", "shard"),
        ("gpu:1,mps:50", "mps"),
        ("gres/mps", "mps"),
        ("gpu:shard:1", ""),
        ("shards:1,mpstat", ""),
    ],
)
def test_shared_gpus_are_known(text: str, name: str) -> None:
    assert shared_gpus(text) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gres:shard:2", (GpuRequest("shard", 2),)),
        ("shard", (GpuRequest("shard", 1),)),
        ("license:1, gres/mps:50", (GpuRequest("mps", 50),)),
        ("shard=3,gpu:1g.10gb:1", (GpuRequest("shard", 3),)),
        ("gpu:shard:1,shards:2", ()),
    ],
)
def test_parts_of_shared_gpus_are_read(text: str, found: tuple[GpuRequest, ...]) -> None:
    assert parse_shared(text) == found
    assert all(shared_gpus(gres_text(one)) == one.gres_type for one in found)


@pytest.mark.parametrize("text", ["shard:a100:1", "mps:1k", "gres:gres:shard:1", "shard:-1"])
def test_other_forms_of_shared_gpus_are_refused(text: str) -> None:
    """Slurm may read such a text as another number than Slicewise would charge."""
    with pytest.raises(InvalidInputError) as caught:
        parse_shared(text)
    assert caught.value.refusal.code == "SW-GRES"


def test_parts_of_shared_gpus_are_counted_beside_the_types() -> None:
    tres = parse_tres("cpu=1,gres/gpu=1,gres/gpu:1g.10gb=1,gres/shard=3,gres/shardx=2")
    assert gpu_types_of_tres(tres) == {"1g.10gb": 1, "shard": 3}
    assert [tres_name(kind) for kind in ("1g.10gb", "mps")] == ["gres/gpu:1g.10gb", "gres/mps"]
