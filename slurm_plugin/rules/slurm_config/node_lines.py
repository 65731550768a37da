"""Reads a node's lines in slurm.conf and gres.conf, arranges its devices, and replaces the lines.

Slurm knows a device by its index on the node, and a running job keeps the index that it got. slurmd
arranges the devices of gres.conf by type, in the order of types in the node's ``Gres``. So the
devices of a type are one run of indices, and the order in gres.conf matters only within that run.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.gpus.inventory import Gpu, Inventory
from slicewise.cluster.language.gpus.vendors import accelerator
from slicewise.cluster.language.gres import parse_gpu_requests
from slicewise.cluster.language.slurm.values import hosts
from slicewise.slurm_plugin.rules.slurm_config.gres import Device
from slicewise.slurm_plugin.rules.slurm_config.pads import PAD, is_pad

_NODE = re.compile(r"\s*NodeName\s*=\s*(\S+)", re.IGNORECASE)
_EVERYWHERE = re.compile(r"\s*Name\s*=\s*gpu\b", re.IGNORECASE)
_NAME = re.compile(r"(?<!\S)Name\s*=\s*(\S+)", re.IGNORECASE)
_GRES = re.compile(r"(?<!\S)Gres\s*=\s*(\S+)", re.IGNORECASE)
_TYPE = re.compile(r"(?<!\S)Type\s*=\s*(\S+)", re.IGNORECASE)
_WORD = re.compile(r"(?<!\S)(\w+)\s*=")
_FILES = re.compile(r"(?<!\S)(File|MultipleFiles)\s*=\s*([^\s\[\]]+)(?!\S)", re.IGNORECASE)
_PAIR = re.compile(r"(?<!\S)(\w+)\s*=\s*(\S+)")
_KNOWN = frozenset({"nodename", "autodetect", "name", "type", "file", "multiplefiles"})
"""The words that are written again; any other word, such as Cores, would be lost."""
_DETECTS_NOTHING = re.compile(r"(?<!\S)AutoDetect\s*=\s*off(?!\S)", re.IGNORECASE)
_WORD_OF_A_LINE = re.compile(r"[A-Za-z0-9._:,=/+@-]*")
"""Text without blanks, comments, quotes and line breaks."""
_KNOWN_LINES = 1 << 12

Positions = tuple[Device | None, ...]
"""A node's devices by Slurm's index; None is a pad."""


@dataclass(frozen=True)
class _Said:
    """What a line of gres.conf says about GPUs.

    Attributes:
        device: None if the line is not for exactly one device.
        unknown: a word that would be lost; "" if there is none.
    """

    device: Device | None
    unknown: str


def room(inventory: Inventory) -> int:
    """Number of devices that Slurm's files list for a node, however its GPUs are cut.

    Slurm lets jobs survive a change only if that number stays. A board in MIG mode counts as many
    as it could have instances, any other board counts one. Boards that Slicewise never cuts count
    as many as they have.
    """
    has_parts = accelerator(inventory.vendor).has_parts
    return sum(_room(gpu, has_parts=has_parts) for gpu in inventory.gpus)


def _room(gpu: Gpu, *, has_parts: bool) -> int:
    if gpu.board is None or not gpu.mig:
        return 1
    return gpu.board.compute_slices if has_parts else len(gpu.instances)


def positions(
    before: Sequence[Device | None],
    after: Sequence[Device],
    held: Collection[int],
    *,
    pads_between: bool = True,
) -> Positions:
    """Arrange devices: those that running jobs hold keep their indices, the others fill the rest.

    Pads lie between the types as far as held devices allow, so that each type can become more. Or,
    without ``pads_between``, behind all types: a job that asks for a GPU of any type would get a
    pad before devices of later types, where nobody gives such a job a type.

    ``held`` are indices of ``before``. Raises InvalidInputError: SW-REPARTITION-CONF if there are
    more devices than before, SW-REPARTITION-HELD if a held device does not exist any more, or if
    Slurm has no order in which held devices stay.
    """
    if len(after) > len(before):
        raise InvalidInputError(
            Code.REPARTITION_CONF,
            f"The node would have {len(after)} devices, but Slurm counts {len(before)}.",
            "Write its lines again while it is empty: slicewise node gres",
        )
    devices = dict(enumerate(before))
    fixed = {index: _kept(devices.get(index), after) for index in held}
    kinds = _kinds(before, Counter(device.gres_type for device in after), fixed)
    arranged = _apart(kinds, fixed) if pads_between else kinds
    rest = defaultdict[str, list[Device]](list)
    for device in after:
        if device not in fixed.values():
            rest[device.gres_type].append(device)
    return tuple(
        fixed.get(index) or (None if gres_type is None else rest[gres_type].pop(0))
        for index, gres_type in enumerate(arranged)
    )


def _kept(device: Device | None, after: Collection[Device]) -> Device:
    if device is None or device not in after:
        what = "a pad" if device is None else f"{device.gres_type} ({device.files[-1]})"
        raise InvalidInputError(
            Code.REPARTITION_HELD,
            f"A running job holds {what}, which would be gone.",
            "Wait until it has ended.",
        )
    return device


_MOST_MOVES = 50
"""Most times that each run is moved between its neighbours; a handful is enough for most."""
_MOST_TRIED = 50_000
"""Most beginnings of an order that are tried. Nine types of 56 devices have no more. A node that
invents a type for each device would otherwise keep slurmctld's host trying without end."""


def _kinds(
    before: Sequence[Device | None], counts: Mapping[str, int], fixed: Mapping[int, Device]
) -> Sequence[str | None]:
    """The type at each index, with one run for each type; as before where possible."""

    def fits(gres_type: str, run: range) -> bool:
        inside = all(fixed[i].gres_type == gres_type for i in run if i in fixed)
        return run.stop <= len(before) and inside

    bits = {gres_type: 1 << nth for nth, gres_type in enumerate(counts)}
    tried = itertools.count()

    @cache
    def rest(index: int, placed: int) -> tuple[str | None, ...] | None:
        if next(tried) > _MOST_TRIED:
            return None
        if index == len(before):
            return () if placed == (1 << len(counts)) - 1 else None
        device = before[index]
        first = [] if device is None else [device.gres_type]
        for gres_type in dict.fromkeys((*first, *counts)):
            length = counts.get(gres_type, 0)
            if (
                length
                and not placed & bits[gres_type]
                and fits(gres_type, range(index, index + length))
            ):
                order = rest(index + length, placed | bits[gres_type])
                if order is not None:
                    return (gres_type,) * length + order
        order = None if index in fixed else rest(index + 1, placed)
        return None if order is None else (None, *order)

    order = rest(0, 0)
    if order is None:
        held = ", ".join(f"{i}: {fixed[i].gres_type}" for i in sorted(fixed))
        raise InvalidInputError(
            Code.REPARTITION_HELD,
            f"No order of devices keeps the held ones in place ({held}).",
            "Wait until some of their jobs have ended.",
        )
    return order


def _apart(kinds: Sequence[str | None], fixed: Collection[int]) -> Sequence[str | None]:
    """The same runs in the same order, each in the middle of the pads beside it.

    A run whose first and last devices are held can grow only into pads. Held devices stay within
    their runs.
    """
    named = dict.fromkeys(gres_type for gres_type in kinds if gres_type is not None)
    firsts = {gres_type: kinds.index(gres_type) for gres_type in named}
    runs = [range(first, first + kinds.count(gres_type)) for gres_type, first in firsts.items()]
    for _ in range(_MOST_MOVES):
        before = list(runs)
        for nth, run in enumerate(runs):
            lowest = runs[nth - 1].stop if nth else 0
            end = runs[nth + 1].start if nth + 1 < len(runs) else len(kinds)
            held = [index for index in run if index in fixed]
            first = max(lowest, max(held, default=0) + 1 - len(run))
            last = min(end - len(run), min(held, default=end))
            start = min(max((lowest + end - len(run)) // 2, first), last)
            runs[nth] = range(start, start + len(run))
        if runs == before:
            break
    arranged: list[str | None] = [None] * len(kinds)
    for gres_type, run in zip(named, runs, strict=True):
        arranged[run.start : run.stop] = [gres_type] * len(run)
    return arranged


def counts_by_run(arranged: Sequence[Device | None]) -> Mapping[str, int]:
    """Devices by type, in the order of Slurm's indices; each run of pads is a type of its own."""
    counts: dict[str, int] = {}
    index = 0
    for gres_type, those in groupby(device.gres_type if device else "" for device in arranged):
        count = sum(1 for _ in those)
        counts[gres_type or f"{PAD}{index}"] = count
        index += count
    return counts


def padded(arranged: Sequence[Device | None], vendor: str, directory: str) -> tuple[Device, ...]:
    """The devices with one for each pad, for the node's lines.

    A pad must be a character device with a name of its own; the vendor of the node's GPUs
    determines which. Each run of pads is a type of its own, so that it can be anywhere.
    """
    pad_file = accelerator(vendor).pad_file
    devices: list[Device] = []
    pads, start = 0, 0
    for index, device in enumerate(arranged):
        if device is not None:
            devices.append(device)
            continue
        if index == 0 or arranged[index - 1] is not None:
            start = index
        devices.append(Device(f"{PAD}{start}", (pad_file(directory, pads),)))
        pads += 1
    return tuple(devices)


def node_positions(slurm_conf: str, gres_conf: str, node: str) -> Positions:
    """The devices of a node that both files agree on.

    Raises InvalidInputError (SW-REPARTITION-CONF) if its lines are not as ``slicewise node gres``
    prints them: no line shared with other nodes, one for each device, each with AutoDetect=off.
    """
    lines = _gpu_lines(gres_conf.split("\n"), node)
    devices = [_device(line, parsed, node) for line, parsed in lines.values()]
    conf = slurm_conf.split("\n")
    match = _GRES.search(_bare(conf[_node_line(conf, node)]))
    counts = _counts(match[1] if match else "")
    if counts != Counter(device.gres_type for device in devices):
        raise _wrong(f"slurm.conf and gres.conf don't have the same devices of {node}.")
    ordered = (
        device for gres_type in counts for device in devices if device.gres_type == gres_type
    )
    return tuple(None if is_pad(device.gres_type) else device for device in ordered)


def device_files(gres_conf: str, node: str) -> Iterator[str]:
    """Yield the files that gres.conf names for a node, also in lines that other nodes share.

    Its slurmd waits for each, and does not start without one. Lines that can't be read are left
    out: Slurm says so itself.
    """
    for line in gres_conf.replace("\\\n", " ").splitlines():
        values = {key.lower(): value for key, value in _PAIR.findall(_bare(line))}
        with suppress(SlicewiseError):
            if node in hosts(values.get("nodename", node)):
                yield from hosts(values.get("file", ""))
                yield from hosts(values.get("multiplefiles", ""))


def with_node_gres(slurm_conf: str, node: str, gres: str) -> str:
    """slurm.conf with that ``Gres`` for the GPUs in the node's line, and all else unchanged.

    Raises InvalidInputError: SW-REPARTITION-CONF if the node has no line of its own in this file,
    SW-REPARTITION-CONF if ``gres`` is more than one word.
    """
    lines = slurm_conf.split("\n")
    number = _node_line(lines, node)
    bare = _bare(lines[number])
    end = lines[number][len(bare) :]
    match = _GRES.search(bare)
    start, stop = match.span() if match else (len(bare), len(bare))
    gap = "" if match else " "
    others = (
        word for word in (match[1] if match else "").split(",") if not parse_gpu_requests(word)
    )
    _require_one_line(gres)
    new = ",".join(filter(None, (gres, *others)))
    lines[number] = f"{bare[:start]}{gap}Gres={new}{bare[stop:]}{end}"
    return "\n".join(lines)


def with_node_lines(gres_conf: str, node: str, lines: Sequence[str]) -> str:
    """gres.conf with these lines for the node's GPUs in place of the present ones.

    Raises InvalidInputError: SW-REPARTITION-CONF if the node has no lines of its own in this file,
    SW-REPARTITION-CONF if one of the new lines is for another node, or is more than one line.
    """
    old = gres_conf.split("\n")
    numbers = list(_gpu_lines(old, node))
    for line in lines:
        begin, _, words = line.partition(" ")
        if begin != f"NodeName={node}":
            raise _several(line)
        for word in words.split(" "):
            _require_one_line(word)
    kept = [line for number, line in enumerate(old) if number not in numbers]
    return "\n".join((*kept[: numbers[0]], *lines, *kept[numbers[0] :]))


def as_kept(text: str, kept: str, node: str) -> str:
    """The present text of a file with the node's lines as they were in ``kept``.

    Changes to other lines since then stay. The node's lines go where it has lines now.
    """
    now, before = text.split("\n"), kept.split("\n")
    ours, own = (dict(_own_lines(lines, node)).keys() for lines in (now, before))
    others = [line for number, line in enumerate(now) if number not in ours]
    if others == [line for number, line in enumerate(before) if number not in own]:
        return kept
    start = min(ours, default=len(others))
    return "\n".join((*others[:start], *(before[n] for n in own), *others[start:]))


def _require_one_line(word: str) -> None:
    if _WORD_OF_A_LINE.fullmatch(word) is None:
        raise _several(word)


def _several(text: str) -> InvalidInputError:
    return InvalidInputError(
        Code.REPARTITION_CONF,
        f"This is not a line for a node's GPUs, so it is not written: {text[:200]!a}.",
        "See what the node's driver calls them: slicewise node probe",
    )


def _counts(gres: str) -> Mapping[str, int]:
    counts = Counter[str]()
    for request in parse_gpu_requests(gres):
        counts[request.gres_type or ""] += request.count
    return counts


def _gpu_lines(lines: Sequence[str], node: str) -> Mapping[int, tuple[str, _Said]]:
    """By number, without comment, with what it says of a GPU."""
    everywhere = [line for line in lines if _EVERYWHERE.match(line)]
    if everywhere:
        line = _bare(everywhere[0]).strip()
        raise _wrong(f"gres.conf has a line for the GPUs of all nodes: {line}")
    own = {
        number: (begin.string, parsed)
        for number, begin in _own_lines(lines, node)
        if (parsed := _said(begin.string[begin.end() :])) is not None
    }
    if not own:
        raise _wrong(f"gres.conf has no line of its own for the GPUs of {node}.")
    return own


def _device(line: str, parsed: _Said, node: str) -> Device:
    if parsed.device is None:
        raise _wrong(
            f"This line of {node} in gres.conf is not for exactly one device: {line.strip()}"
        )
    if parsed.unknown:
        raise _wrong(
            f"A line of {node} in gres.conf has {parsed.unknown}, which a repartition would lose."
        )
    return parsed.device


@lru_cache(_KNOWN_LINES)
def _said(words: str) -> _Said | None:
    """Parse a line after its node's name; None if the line is not about GPUs.

    Nodes that are cut alike have the same text there, so results are cached.
    """
    name, gres_type, files = _NAME.search(words), _TYPE.search(words), _FILES.search(words)
    if name is None or name[1].lower() != "gpu":
        return None
    is_plain = files is not None and (files[1].lower() == "multiplefiles" or "," not in files[2])
    if gres_type is None or files is None or not is_plain or not _DETECTS_NOTHING.search(words):
        return _Said(None, "")
    unknown = {word.lower() for word in _WORD.findall(words)} - _KNOWN
    return _Said(Device(gres_type[1], tuple(files[2].split(","))), min(unknown, default=""))


def _node_line(lines: Sequence[str], node: str) -> int:
    own = [number for number, _ in _own_lines(lines, node)]
    if len(own) != 1:
        raise _wrong(f"slurm.conf has {len(own) or 'no'} lines of its own for {node}.")
    return own[0]


def _own_lines(lines: Sequence[str], node: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The node's own lines: number, and match up to the node's name in the line without comment."""
    for number, line in enumerate(lines):
        match = _NODE.match(_bare(line))
        if match is None or (match[1] != node and node not in hosts(match[1])):
            continue
        if match[1] != node or line.rstrip().endswith("\\"):
            raise _wrong(f"{node} shares a line, or it goes on over several: {line.strip()}")
        yield number, match


def _bare(line: str) -> str:
    """The line without its comment."""
    return line.partition("#")[0].rstrip()


def _wrong(what: str) -> InvalidInputError:
    return InvalidInputError(
        Code.REPARTITION_CONF,
        what,
        "A node with GPUs to repartition needs lines of its own in both files: slicewise node gres",
    )
