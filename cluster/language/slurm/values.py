"""Parses single values in Slurm's text: times, durations, lists of numbers and hosts, limits."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby, product
from math import isfinite, nan, prod

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.gres import parse_tres

MOST_STEPS = 8
"""Steps of a job that are looked at, the first that run: a replica has one."""
_NOTHING = frozenset({"", "(null)", "N/A", "None", "Unknown", "INVALID", "NOT_SET"})
_NO_TIME = _NOTHING | {"NONE"}
"""Words for no time; NONE is squeue's word for the end of a job without a time limit."""
_NO_LIMIT = frozenset({"UNLIMITED", "PARTITION_LIMIT", "INFINITE", "NONE"})
_LAST_TIME_S = 1 << 40
"""A hundred times as far away as any time that a server has."""
_MOST_NUMBERS = 1 << 22
"""Slurm's own bound: an array has at most 4,000,001 tasks."""
_MOST_HOSTS = 1 << 18
"""Slurm's own bound on a list of hosts."""
_LONGEST_HOST, _MOST_PARTS = 255, 32
"""Letters of one name beside its brackets, and parts of it between and in brackets."""
_WHOLE = re.compile(r"[0-9]{1,18}")
_SIGNED = re.compile(r"-?[0-9]{1,18}")
_COUNTED = ("cpu", "node", "billing", "gres/")
"""TRES that Slurm counts in whole numbers without a unit."""
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::([1-9][0-9]{0,17}))?")
_DURATION = re.compile(
    r"(?:(?P<days>[0-9]{1,7})-)?(?P<clock>[0-9]{1,9}(?::[0-9]{1,2}){0,2})(?:\.[0-9]{1,9})?"
)
_GPUS = re.compile(r"gpu:(?P<type>[^:,()]+):(?P<count>[0-9]+)")
_SHARED_GPUS = re.compile(r"(?<![^,])(?P<name>shard|mps):(?:[^:,()]+:)?(?P<count>\d{1,8})(?![^,(])")
_UNTYPED = re.compile(r"(?<![^,])gpu:([0-9]{1,8})(?![^,(])")
_GPU_IDS = re.compile(r"\bgpu:[^(),]*\(IDX:(\d{1,5}(?:[,-]\d{1,5})*)\)")
_HOST_PART = re.compile(r"\[([^\]]*)\]|([^\[,]+)")
_BRACKETS = re.compile(r"\[[^\[\]\s]*\]")
_HOSTS = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
_MIB = {"": 1, "M": 1, "G": 2**10, "T": 2**20, "P": 2**30}
_PROMPT = "sacctmgr: "
_COUNT = re.compile(r"^(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)(?P<unit>[MGTP]?)$")


def unreadable(what: str, text: str) -> OutsideError:
    """The error for text that no known version prints."""
    return OutsideError(
        Code.SLURM_FAILED,
        f"Slurm's {what} can't be read: {text[:200]!r}.",
        "Tried with Slurm 22.05, 24.11 and 26.05; report it with `scontrol version`.",
    )


def is_whole(text: str) -> bool:
    """Whether the text is a whole number of at most 18 digits and no sign."""
    return _WHOLE.fullmatch(text) is not None


def whole(text: str) -> int:
    """A whole number, which no record has longer than 18 digits; raises OutsideError."""
    if not _SIGNED.fullmatch(number := text.strip()):
        raise unreadable("number", text)
    return int(number)


def plain(value: str) -> str:
    """The text; "" for Slurm's word for an unset one."""
    return "" if value == "(null)" else value


def time_s(value: str) -> int | None:
    """Unix seconds of a time that Slurm prints under SLURM_TIME_FORMAT=%s, or as ISO 8601 has it.

    Without an offset (``+0200``, ``+02:00``, ``Z``) it is in UTC. None for Slurm's words for no
    time.
    """
    if value in _NO_TIME:
        return None
    if _WHOLE.fullmatch(value):
        unix_s = int(value)
    else:
        try:
            moment = datetime.fromisoformat(value)
            zoned = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
            unix_s = int(zoned.timestamp())
        except (ValueError, OverflowError):
            raise unreadable("time", value) from None
    if not 0 <= unix_s < _LAST_TIME_S:
        raise unreadable("time", value)
    return unix_s


def time_text(unix_s: int) -> str:
    """A time as a command that runs with TZ=UTC takes it: ``2026-11-21T00:56:05``."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def duration_s(value: str) -> int | None:
    """Whole seconds of ``[days-][hours:]minutes:seconds[.parts]``; None for no limit."""
    if value in _NOTHING or value.upper() in _NO_LIMIT:
        return None
    match = _DURATION.fullmatch(value)
    if match is None:
        raise unreadable("time limit", value)
    seconds = 0
    for part in match["clock"].split(":"):
        seconds = seconds * 60 + int(part)
    return int(match["days"] or 0) * 86_400 + seconds


def numbers(text: str) -> tuple[int, ...]:
    """Read a list of indices or ports: ``0-3,7%4`` is 0, 1, 2, 3, 7.

    Slurm's ``%4`` bounds how many tasks run at the same time.
    """
    ranges = [_range(part) for part in text.partition("%")[0].split(",") if part]
    if sum(map(len, ranges)) > _MOST_NUMBERS:
        raise unreadable("list of numbers", text)
    return tuple(chain.from_iterable(ranges))


def _range(part: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise unreadable("list of numbers", part)
    first, last, step = match.groups()
    indices = range(int(first), int(last or first) + 1, int(step or 1))
    if indices.stop - indices.start > _MOST_NUMBERS:
        raise unreadable("list of numbers", part)
    return indices


def numbers_text(values: frozenset[int]) -> str:
    """Write numbers as the shortest list: {0, 1, 2, 5} is ``0-2,5``."""
    runs = groupby(enumerate(sorted(values)), key=lambda pair: pair[1] - pair[0])
    ends = ([value for _, value in run] for _, run in runs)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)


def gpu_counts(text: str) -> Mapping[str, int]:
    """GPUs by type, from ``gpu:1g.10gb:3,gpu:3g.40gb:1(S:0)``."""
    # A type may stand in several lines of gres.conf.
    counts: dict[str, int] = {}
    for match in _GPUS.finditer(text):
        counts[match["type"]] = counts.get(match["type"], 0) + whole(match["count"])
    return counts


def untyped_gpus(text: str) -> int:
    """Number of GPUs without a type: ``gpu:8(S:0-1)`` is 8."""
    return sum(int(count) for count in _UNTYPED.findall(text))


def shared_counts(text: str) -> Mapping[str, int]:
    """Parts of shared GPUs, from ``gpu:a100:1,shard:a100:8``; Slurm adds the GPU's type itself."""
    counts: dict[str, int] = {}
    for match in _SHARED_GPUS.finditer(text):
        counts[match["name"]] = counts.get(match["name"], 0) + whole(match["count"])
    return counts


def gpu_indices(text: str) -> frozenset[int]:
    """GPU indices by the order of gres.conf.

    ``gpu:1g.10gb:2(IDX:0-1),gpu:3g.40gb:1(IDX:5)`` is 0, 1, 5.
    """
    return frozenset(index for ids in _GPU_IDS.findall(text) for index in numbers(ids))


def hosts(text: str) -> tuple[str, ...]:
    """Expand ``gpu[01-02,07],login`` into gpu01, gpu02, gpu07, login; () for none."""
    if text in _NOTHING:
        return ()
    # A bracket that is left over lacks the other one.
    if re.search(r"[\s=\[\]]", _BRACKETS.sub("", text)):
        raise unreadable("list of hosts", text)
    words = _HOSTS.findall(text)
    if any(len(_BRACKETS.sub("", word)) > _LONGEST_HOST for word in words):
        raise unreadable("list of hosts", text)
    parts = [
        [name or _ranges(ranges) for ranges, name in _HOST_PART.findall(word)] for word in words
    ]
    # Counted before one name is made: a few brackets are more names than memory holds.
    if sum(map(_count_of, parts)) > _MOST_HOSTS or max(map(len, parts), default=0) > _MOST_PARTS:
        raise unreadable("list of hosts", text)
    return tuple(host for part in parts if _count_of(part) for host in _hosts_of(part))


_Ranges = Sequence[tuple[int, range]]
"""What a bracket holds: ranges of numbers with the fewest digits of each."""


def _ranges(text: str) -> _Ranges:
    return [(len(part.partition("-")[0]), _range(part)) for part in text.split(",")]


def _count_of(part: Sequence[str | _Ranges]) -> int:
    """Return how many hosts a word with brackets names."""
    counts = (
        sum(len(each) for _, each in text_part)
        for text_part in part
        if not isinstance(text_part, str)
    )
    return prod(counts)


def _hosts_of(part: Sequence[str | _Ranges]) -> Iterator[str]:
    choices = (
        (text_part,) if isinstance(text_part, str) else tuple(_padded(text_part))
        for text_part in part
    )
    return ("".join(words) for words in product(*choices))


def _padded(ranges: _Ranges) -> Iterator[str]:
    return (str(number).zfill(width) for width, numbers in ranges for number in numbers)


def tres(text: str) -> Mapping[str, str]:
    """Split ``cpu=1,gres/gpu:1g.10gb=1`` into a mapping; {} for none."""
    amounts = {} if text in _NOTHING else parse_tres(text)
    for name, value in amounts.items():
        if name.startswith(_COUNTED) and not _WHOLE.fullmatch(value):
            raise unreadable("TRES", text)
    return amounts


def names(text: str) -> frozenset[str]:
    """Names separated by commas."""
    return frozenset(name for name in text.split(",") if name)


def named(text: str) -> str:
    """The name; "" for Slurm's words for none."""
    return "" if text in _NOTHING else text


def weights(text: str) -> Mapping[str, float]:
    """Read ``CPU=1,Mem=0.25G,GRES/gpu:1g.10gb=1000``, with the TRES in small letters.

    Slurm takes them in any case. That of memory is per MiB; a unit behind another one is left out.
    """
    weights = {} if text in _NOTHING else parse_tres(text)
    return {name.lower(): _weight(name.lower(), value) for name, value in weights.items()}


def _weight(tres: str, value: str) -> float:
    per_mib = _MIB.get(value[-1:].upper(), 1) if tres == "mem" else 1
    try:
        weight = float(value.rstrip("MGTPmgtp")) / per_mib
    except ValueError:
        weight = nan
    if not isfinite(weight):
        raise unreadable("billing weight", value)
    return weight


def limits(text: str) -> Mapping[str, int]:
    """Read ``billing=3000,mem=500G`` as whole numbers, memory in MiB."""
    return {name: _count(value) for name, value in parse_tres(text).items()}


def _count(value: str) -> int:
    """Read ``3000``, or memory such as ``500G`` in MiB."""
    match = _COUNT.match(value)
    if match is None:
        raise unreadable("limit", value)
    return int(float(match["number"]) * _MIB[match["unit"]])


def answers(text: str, mark: str) -> Sequence[str]:
    """Split what one ``scontrol`` printed into the answers to its lines.

    ``show hostnames MARK`` follows each line. scontrol prints its prompt before each answer, and
    echoes what it reads if it was built with readline.
    """
    return re.split(rf"(?:scontrol: )?(?:show hostnames {mark}\n)?{mark}\n", text)


def without_prompts(text: str) -> str:
    """What ``sacctmgr`` printed for the one line that it has read, a ``show``.

    It prints its prompt before it reads and at the end, and echoes the line if it was built with
    readline.
    """
    first, _, rest = text.partition("\n")
    answer = rest if first.startswith(f"{_PROMPT}show ") else text.removeprefix(_PROMPT)
    return answer.removesuffix("\n").removesuffix(_PROMPT)


def has_default_memory(fields: Mapping[str, str]) -> bool:
    """Whether a partition, or slurm.conf, gives memory to a job that asks for none."""
    words = (fields.get("DefMemPerCPU", ""), fields.get("DefMemPerNode", ""))
    return any(map(is_whole, words)) or "DefMemPerGPU" in fields.get("JobDefaults", "")


def node_blocked(row: Mapping[str, str]) -> str:
    """Why a node of ``scontrol show node`` has nothing left for a job, whatever GPUs are free.

    For example ``all of its CPUs are taken``; "" if the node has room, or if Slurm shows no
    numbers.
    """
    for total, taken, what in (
        (row.get("CPUEfctv") or row.get("CPUTot", ""), row.get("CPUAlloc", ""), "CPUs are"),
        (row.get("RealMemory", ""), row.get("AllocMem", ""), "memory is"),
    ):
        # A node without memory has RealMemory=0 or 1.
        if is_whole(total) and is_whole(taken) and int(taken) >= max(1, int(total)):
            return f"all of its {what} taken"
    # Other users need not read which user that is.
    if row.get("Owner", "N/A") != "N/A":
        return "it is kept for one user"
    return "" if row.get("MCS_label", "N/A") == "N/A" else "it is kept for one security label"
