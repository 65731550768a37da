"""Builds the input by which one ``scontrol`` changes many jobs or nodes; reads its complaints.

Also finds the QOS that changes by ``sacctmgr`` name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.cluster.language.slurm.values import numbers_text

_PLAIN = re.compile(r"[!#-&(-~]*")
_NO_COMPLAINT = ": No error"
_NODES_ON_A_LINE = 32
_LONGEST_LINE = 4000
"""Without readline scontrol takes 4,095 bytes of a line."""
_TASKS_IN_A_WORD = 100
_FIRST_ONLY = frozenset({"QOS", "Gres", "TresPerNode", "TresPerJob", "TresPerTask", "ExcNodeList"})
"""Settings that slurmctld, given a list of tasks, changes in the first record only, without saying
so: QOS since 24.11, the others in every version.
"""

Words = tuple[str, ...]
"""Words of one command, such as ``update JobId=814_[0-3] SiteFactor=500``."""


def update_words(
    target: Target, change: JobChange, untouched: Mapping[int, frozenset[int]]
) -> tuple[Words, ...]:
    """The commands that make this change.

    ``untouched`` are the tasks that share a record, by array: slurmctld changes the record as one,
    if all of its tasks are named.
    """
    words = [f"{key}={value}" for key, value in _values(change).items()]
    return tuple(
        ("update", f"JobId={where}", *words) for where in _where(target, change, untouched)
    )


def is_taken_by_the_first_only(target: Target, change: JobChange) -> bool:
    """Whether Slurm would change only one of these tasks if they were given as a list."""
    is_list = not isinstance(target, int) and len(target.indices) > 1
    return is_list and not _FIRST_ONLY.isdisjoint(_values(change))


def _where(
    target: Target, change: JobChange, untouched: Mapping[int, frozenset[int]]
) -> Iterator[str]:
    if isinstance(target, int) or not is_taken_by_the_first_only(target, change):
        yield address(target)
        return
    rest = untouched.get(target.array_job_id, frozenset())
    together = rest if len(rest) > 1 and rest <= target.indices else frozenset()
    if together:
        yield address(Tasks(target.array_job_id, together))
    # scontrol makes a call of its own for each of these tasks.
    alone = [f"{target.array_job_id}_{index}" for index in sorted(target.indices - together)]
    for start in range(0, len(alone), _TASKS_IN_A_WORD):
        yield ",".join(alone[start : start + _TASKS_IN_A_WORD])


def _values(change: JobChange) -> Mapping[str, int | str]:
    values = {
        "QOS": change.qos,
        "SiteFactor": change.site_factor,
        # An empty Gres leaves "gres:", which no type can follow.
        "Gres" if change.gres else "TresPerNode": change.gres,
        "TresPerJob": change.tres_per_job,
        "TresPerTask": change.tres_per_task,
        "AdminComment": change.admin_comment,
        "TimeLimit": change.time_limit_min,
        "ArrayTaskThrottle": change.throttle,
        "ExcNodeList": None
        if change.excluded_nodes is None
        else ",".join(sorted(change.excluded_nodes)),
    }
    return {key: value for key, value in values.items() if value is not None}


def address(target: Target) -> str:
    """The target as commands take it: ``814`` or ``814_[0-2,5]``."""
    if isinstance(target, int):
        return str(target)
    return f"{target.array_job_id}_[{numbers_text(target.indices)}]"


def fits_on_a_line(words: Words) -> bool:
    """Whether scontrol's standard input can carry it: there, quotes become part of the value."""
    is_plain = all(_PLAIN.fullmatch(word) for word in words)
    return is_plain and len(" ".join(words)) <= _LONGEST_LINE


def update_script(changes: Iterable[Sequence[Words]], mark: str) -> str:
    """Lines for scontrol's standard input.

    Before the first change and after each one stands a keyword that scontrol does not know. Its
    complaint about the keyword ends the complaints about the change: they all come on standard
    error, in order, as that is not buffered. Complaints before the first keyword are about
    slurm.conf, and no refusals.
    """
    lines = ("".join(f"{' '.join(words)}\n" for words in change) for change in changes)
    return f"{mark}\n" + "".join(f"{each}{mark}\n" for each in lines)


def refusals(complaint: str, mark: str, targets: Sequence[Target]) -> Mapping[Target, str]:
    """Slurm's own words by the target that it refused.

    A target with several tasks counts as refused if Slurm refused any of them, although it took
    others. A target that scontrol did not reach before it ended is refused with its last words.
    """
    first, *answers = re.split(rf"(?m)^.*{mark}.*$", complaint)
    done = [own_words(part) for part in answers[:-1]]
    last = own_words(answers[-1] if answers else first) or "scontrol ended before it was made"
    words = (*done, *(last for _ in targets[len(done) :]))
    return {target: text for target, text in zip(targets, words, strict=True) if text}


def weights_script(weights: Mapping[str, int]) -> str:
    """Lines for scontrol's standard input; nodes of the same weight share a line."""
    lines: list[str] = []
    for weight in sorted(set(weights.values())):
        those = sorted(name for name, wanted in weights.items() if wanted == weight)
        for start in range(0, len(those), _NODES_ON_A_LINE):
            nodes = ",".join(those[start : start + _NODES_ON_A_LINE])
            lines.append(f"update NodeName={nodes} Weight={weight}\n")
    return "".join(lines)


def own_words(complaint: str) -> str:
    """The complaint without lines on tasks of an array that were changed while others were not."""
    lines = (line.strip() for line in complaint.splitlines())
    return "\n".join(line for line in lines if line and not line.endswith(_NO_COMPLAINT))


def named_qos(changes: Iterable[Words]) -> frozenset[str]:
    """The QOS that these changes by sacctmgr add or modify."""
    named: set[str] = set()
    for change in changes:
        match change:
            case ("add", "qos", names, *_) | ("modify", "qos", "where", names, *_):
                named.update(names.removeprefix("name=").split(","))
    return frozenset(named)
