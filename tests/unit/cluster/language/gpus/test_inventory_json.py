"""Tests that a node's report of its GPUs may hold only what drivers say, whatever root sends."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from stand_ins.emulated_gpus import gpu_node, two_boards

from slicewise.cluster.gpu.nvml import read_inventory
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.gpus.inventory_json import MOST_BYTES, gpu_of, inventory_of
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import boards
from slicewise.sandbox.nvml.driver import EmulatedGpu

FORGED = "NVIDIA A100\nPrologSlurmctld=/tmp/evil\n#"
ENDS = (
    "\n",
    "\nPrologSlurmctld=/x",
    "\r",
    "\x0b",
    "\u2028",
    " ",
    "#",
    '"',
    ",",
    "=",
    "\\",
    "\x1b[2J",
)


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, Any]]:
    """What a node with an A100 that is cut, a whole H200 and a lost board prints."""
    with two_boards() as node:
        node.create(Placement("3g.40gb", 4, 4))
        found = asdict(read_inventory(node.host_root))
        yield {**found, "lost": [{"index": 2, "error": "GPU is lost"}]}


def forged(said: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> str:
    copy = json.loads(json.dumps(said))
    change(copy)
    return json.dumps(copy)


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a text in it."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in pairs:
            yield from texts(one, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: object) -> None:
    *way, last = path
    for key in way:
        value = value[key]
    value[last] = new(value[last]) if callable(new) else new


def test_what_drivers_say_is_read(said: dict[str, Any]) -> None:
    found = inventory_of(json.dumps(said))
    assert json.dumps(asdict(found)) == json.dumps(said)
    for model in (name for name, on in boards().items() if on.vendor == "NVIDIA"):
        with gpu_node(EmulatedGpu(model)) as node:
            (gpu,) = read_inventory(node.host_root).gpus
            assert gpu_of(json.dumps(asdict(gpu))) == gpu


def test_a_report_of_an_older_version_names_no_vendor_and_is_nvidia_s(said: dict[str, Any]) -> None:
    def older(one: dict[str, Any]) -> None:
        del one["vendor"], one["gpus"][0]["board"]["vendor"]

    found = inventory_of(forged(said, older))
    assert found == inventory_of(json.dumps(said))
    assert found.vendor == "NVIDIA"


@pytest.mark.parametrize("name", ["GRID A100X-4C", "Quadro RTX 6000/8000", "NVIDIA A100 80GB PCIe"])
def test_names_of_other_boards_are_read(said: dict[str, Any], name: str) -> None:
    text = forged(said, lambda one: one["gpus"][1].update(name=name))
    assert inventory_of(text).gpus[1].name == name


@pytest.mark.parametrize("end", ENDS)
def test_no_text_of_a_node_has_another_character_than_its_form(
    said: dict[str, Any], end: str
) -> None:
    """Wherever it stands in the answer: also in a field that is written nowhere today."""
    plain = json.loads(json.dumps(said))
    in_words = {("gpus", n, *rest) for n in (0, 1) for rest in (("name",), ("board", "model"))}
    for path in texts(plain):
        if end == " " and (path in in_words or path[0] == "lost"):
            continue
        if path[0] == "lost" and end.isprintable():
            continue
        text = forged(said, lambda one, path=path: put(one, path, lambda was: was + end))
        with pytest.raises(OutsideError, match="SW-WIRE") as caught:
            inventory_of(text)
        assert caught.value.refusal.message.isprintable()


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["gpus"][0].update(name=FORGED),
        lambda one: one["gpus"][0].update(name="A" * 97),
        lambda one: one["gpus"][0].update(minor=1 << 20),
        lambda one: one["gpus"][0].update(minor=-1),
        lambda one: one["gpus"][0].update(pid=1 << 60, memory_mib=1 << 60),
        lambda one: one.update(gpus=one["gpus"] * 40),
        lambda one: one["gpus"][0].update(instances=one["gpus"][0]["instances"] * 65),
        lambda one: one["gpus"][0]["board"].update(memory_slices=10**9),
        lambda one: one["gpus"][0]["board"].update(profiles={}),
        lambda one: one["gpus"][0]["board"]["profiles"]["1g.10gb"].update(starts=[]),
        lambda one: one["gpus"][0]["board"]["profiles"]["1g.10gb"].update(memory_slices=0),
        lambda one: one["gpus"][0]["board"]["profiles"]["1g.10gb"].update(name="1g.11gb"),
        lambda one: one["gpus"][0].update(uuid="GPU-../../etc"),
        lambda one: one.update(vendor="Other"),
        lambda one: one["gpus"][0]["board"].update(vendor="Other"),
        lambda one: one.update(driver="570\nPrologSlurmctld=/tmp/evil"),
        lambda one: one["lost"][0].update(error="x" * 201),
    ],
)
def test_what_no_driver_says_is_refused(
    said: dict[str, Any], change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(OutsideError, match="SW-WIRE"):
        inventory_of(forged(said, change))


def test_a_board_of_endless_layouts_does_not_hang_the_planner(said: dict[str, Any]) -> None:
    def many(one: dict[str, Any]) -> None:
        board = one["gpus"][0]["board"]
        (first,) = [p for p in board["profiles"].values() if p["name"] == "1g.10gb"]
        names = [f"1g.{number}gb" for number in range(10, 70)]
        board["profiles"] = {name: {**first, "name": name} for name in names}

    with pytest.raises(OutsideError, match="more layouts than any board"):
        inventory_of(forged(said, many))


def test_its_size_and_its_depth_have_an_end(said: dict[str, Any]) -> None:
    with pytest.raises(OutsideError, match="more than"):
        inventory_of(json.dumps(said) + " " * MOST_BYTES)
    with pytest.raises(OutsideError, match="SW-WIRE"):
        inventory_of('{"driver": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(OutsideError, match="SW-WIRE"):
        inventory_of(
            forged(said, lambda one: one["gpus"][0].update(index=0)).replace(
                '"index": 0', '"index": ' + "9" * 5000
            )
        )
