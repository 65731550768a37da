"""Many changes of jobs or nodes for one ``scontrol``, and whose its complaints are."""

import re
from collections.abc import Mapping, Sequence

from cluster.slurm.interface import JobChange, Target
from cluster.slurm.values import numbers_text

_PLAIN = re.compile(r"[!#-&(-~]*")
_NO_COMPLAINT = ": No error"
_NODES_ON_A_LINE = 32
"""Without readline scontrol takes 4,095 bytes."""


def update_words(target: Target, change: JobChange) -> tuple[str, ...]:
    """``update JobId=814_[0-3] SiteFactor=500`` as words."""
    values = _values(change)
    said = (f"{key}={value}" for key, value in values.items())
    return ("update", f"JobId={address(target)}", *said)


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
    }
    return {key: value for key, value in values.items() if value is not None}


def address(target: Target) -> str:
    """``814`` or ``814_[0-2,5]``."""
    if isinstance(target, int):
        return str(target)
    return f"{target.array_job_id}_[{numbers_text(target.indices)}]"


def fits_on_a_line(change: JobChange) -> bool:
    """Whether scontrol's standard input can carry it: there quotes become part of the value."""
    return all(_PLAIN.fullmatch(str(value)) for value in _values(change).values())


def update_script(changes: Mapping[Target, JobChange], mark: str) -> str:
    """Lines for the standard input. After each stands a keyword that scontrol does not know.

    Its complaint of that ends those of the change: they all come on standard error, which no
    buffer mixes up.
    """
    lines = (f"{' '.join(update_words(*each))}\n{mark}\n" for each in changes.items())
    return "".join(lines)


def refusals(complaint: str, mark: str, targets: Sequence[Target]) -> Mapping[Target, str]:
    """Slurm's own words by whom it refused; of an array's tasks also those that it took."""
    said = re.split(rf"(?m)^.*{mark}.*$", complaint)
    words = (own_words(part) for part in said)
    return {target: text for target, text in zip(targets, words, strict=False) if text}


def weights_script(weights: Mapping[str, int]) -> str:
    """Lines for the standard input: nodes of the same weight stand together."""
    lines: list[str] = []
    for weight in sorted(set(weights.values())):
        those = sorted(name for name, wanted in weights.items() if wanted == weight)
        for start in range(0, len(those), _NODES_ON_A_LINE):
            nodes = ",".join(those[start : start + _NODES_ON_A_LINE])
            lines.append(f"update NodeName={nodes} Weight={weight}\n")
    return "".join(lines)


def own_words(complaint: str) -> str:
    """Without the lines that tell of tasks of an array that were changed while others were not."""
    lines = (line.strip() for line in complaint.splitlines())
    return "\n".join(line for line in lines if line and not line.endswith(_NO_COMPLAINT))
