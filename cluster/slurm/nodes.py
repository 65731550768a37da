"""Reads all nodes, one record each; what a node's root forges affects that node only.

``scontrol`` prints text that a node's slurmd sends, such as its OS, unchanged. A blank line in such
text begins a record of another node, and the architecture, which slurmd sends too, comes before
everything that Slurm itself knows. So ``sinfo``, which prints no such text, says which nodes there
are, with their addresses, partitions and GPUs. A node that scontrol shows twice is asked for by
itself.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.parse import MOST_STRANGERS, parse_nodes
from slicewise.cluster.language.slurm.planned_starts import parse_threads
from slicewise.cluster.language.slurm.unread import ReportsUnread, Unread, each, quoted
from slicewise.cluster.language.slurm.values import (
    answers,
    gpu_counts,
    shared_counts,
    untyped_gpus,
    whole,
)
from slicewise.cluster.slurm.run_command import attempt, run, secret

SINFO = ("sinfo", "--noheader", "--all", "--local", "--Node")
_PLACED = re.compile(r"(?:NodeName|Gres|NodeAddr|Weight|Partitions)=\S*")
"""The fields of ``scontrol show node`` that ``sinfo`` is asked for."""
_PLACES_S = 120.0
"""Seconds for which an answer of ``sinfo`` is used."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True)
class NodeConfig:
    """What Slurm has configured of a node; ``gres`` as Slurm prints it."""

    partitions: frozenset[str]
    gres: str
    address: str
    weight: int


class NodeReader:
    """Reads all nodes repeatedly, and keeps ``sinfo``'s answer in between."""

    def __init__(self, told: ReportsUnread, clock: Callable[[], float] = time.monotonic) -> None:
        """``told`` takes what can't be read; ``clock`` gives seconds and never goes back."""
        self._told = told
        self._clock = clock
        self._words: Sequence[str] = ()
        self._until_s = 0.0
        self._places: Mapping[str, NodeConfig] = {}

    async def read(self) -> tuple[NodeView, ...]:
        """Run ``scontrol show node -d``, and ``sinfo`` if its last answer may be outdated.

        That is so if scontrol shows another node, partition, GPU, address or weight than last time,
        and two minutes after ``sinfo`` was last asked: a node's root may forge words such that all
        are the same as before although another node has gone.
        """
        shown = await run(("scontrol", "--all", "show", "node", "-d"))
        words = _PLACED.findall(shown)
        now_s = self._clock()
        if words != self._words or now_s >= self._until_s:
            listed = await run((*SINFO, "--format=%N %R %G %o %w"))
            self._words, self._places = words, parse_places(listed, self._told)
            self._until_s = now_s + _PLACES_S
        places, told = self._places, self._told
        nodes = parse_nodes(shown, told, places)
        asked = doubtful([node.name for node in nodes], places)
        again = await _one_by_one(asked, told) if asked else {}
        return settled(nodes, places, again, told)


async def read_threads() -> Mapping[str, int]:
    """Threads per core, by node, from ``sinfo``."""
    return parse_threads(await run((*SINFO, "--format=%N %Z")))


async def _one_by_one(names: Sequence[str], told: ReportsUnread) -> Mapping[str, NodeView]:
    mark = secret()
    lines = (f"show node {name}\nshow hostnames {mark}\n" for name in names)
    # A node that was made up is not found, which is no failure.
    reply = await attempt(("scontrol", "-d"), stdin="".join(lines))
    answered = zip(names, answers(reply.output, mark), strict=False)
    firsts = {name: parse_nodes(text, told, {name})[:1] for name, text in answered}
    return {name: first[0] for name, first in firsts.items() if first and first[0].name == name}


def parse_places(text: str, told: ReportsUnread) -> Mapping[str, NodeConfig]:
    """Read ``sinfo --Node --format='%N %R %G %o %w'``: a line for each node and partition.

    A line that can't be read is left out.
    """
    configs: dict[str, NodeConfig] = {}
    lines = text.splitlines()
    for name, place in each("place", lines, _place, told, lambda line: line.split(maxsplit=1)[0]):
        before = configs[name].partitions if name in configs else frozenset()
        configs[name] = replace(place, partitions=before | place.partitions)
    return configs


def _place(line: str) -> tuple[str, NodeConfig]:
    name, partition, gres, address, weight = line.split()
    return name, NodeConfig(frozenset({partition}), gres, address, whole(weight))


def doubtful(names: Sequence[str], places: Collection[str]) -> tuple[str, ...]:
    """Names that are there twice, and up to 64 that are in no partition.

    Slurm has to say whether such a node exists and what it is.
    """
    several = [name for name, count in Counter(names).items() if count > 1 and name in places]
    others = [name for name in dict.fromkeys(names) if name not in places]
    strangers = [name for name in others if _NAME.fullmatch(name)]
    # Each is asked for by itself, which takes a millisecond.
    return (*several, *strangers[:MOST_STRANGERS])


def settled(
    nodes: Sequence[NodeView],
    places: Mapping[str, NodeConfig],
    again: Mapping[str, NodeView],
    told: ReportsUnread,
) -> tuple[NodeView, ...]:
    """Each node once. ``again`` has the doubtful nodes as Slurm shows them by themselves."""
    count = Counter(node.name for node in nodes)

    def chosen() -> Iterator[NodeView]:
        for name, node in {node.name: node for node in nodes}.items():
            if count[name] > 1 or (name not in places and name not in again):
                told(Unread("node", quoted(name), "", "in another node's record"))
            if name not in places and name in again:
                yield replace(again[name], partitions=frozenset())
            elif name in places and (count[name] == 1 or name in again):
                yield _at(places[name], again.get(name, node))

    return tuple(chosen())


def _at(place: NodeConfig, node: NodeView) -> NodeView:
    """The node with what Slurm has configured of it.

    No more is allotted of a type than there is, as free GPUs are summed up over all nodes.
    """
    gpus, shared = gpu_counts(place.gres), shared_counts(place.gres)
    allotted, parts = node.gpus_allotted, node.shared_allotted
    return replace(
        node,
        address=place.address,
        partitions=place.partitions,
        gpus=gpus,
        untyped_gpus=untyped_gpus(place.gres),
        weight=place.weight,
        gpus_allotted={name: min(allotted[name], gpus[name]) for name in gpus if name in allotted},
        shared=shared,
        shared_allotted={name: min(parts[name], shared[name]) for name in shared if name in parts},
    )
