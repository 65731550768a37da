"""Checks what a site that lets Slurm power nodes down has set for it."""

import re
from collections.abc import Iterable, Iterator, Mapping

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, hint, warning
from slicewise.cluster.language.jobs import PartitionView
from slicewise.slurm_plugin.rules.slurm_config.conf_words import conf_words, not_of_partition

_LEAST_LOADED, _SPREADS = "CR_LLN", "LLN=YES"
"""In SelectTypeParameters, and in a partition's line: the least loaded node first."""
_SHORT_RESUME_S, _RESUME_S = 300, 600
"""Servers with eight GPUs boot in three to four minutes, and check their memory now and then."""
_SHORT_SUSPEND_S, _SUSPEND_S = 300, 900
"""A boot draws no less than as many seconds of idling. Who waits for as long as what ending costs,
before it ends something, pays at most twice what would have been right."""


def power_findings(
    config: Mapping[str, str], managed: Iterable[PartitionView]
) -> tuple[Finding, ...]:
    """Return what makes nodes that are powered down slow, dear, lost or rare.

    Nothing where Slurm powers none down. ``config`` is ``scontrol show config``.
    """
    has_programs = all(
        config.get(key, "(null)") not in {"", "(null)"}
        for key in ("SuspendProgram", "ResumeProgram")
    )
    return (*_findings(config), *_spread(config, managed)) if has_programs else ()


def _findings(config: Mapping[str, str]) -> Iterator[Finding]:
    resume_s, suspend_s = (_seconds(config, key) for key in ("ResumeTimeout", "SuspendTime"))
    if resume_s is not None and resume_s < _SHORT_RESUME_S:
        yield warning(
            Code.CONF_POWER_SAVING,
            f"ResumeTimeout is {resume_s} s",
            "a node that takes longer to boot is set down, and what it was woken for is requeued",
            Mend(Place.SLURM_CONF, f"ResumeTimeout={_RESUME_S}"),
            advice="Or more than the longest boot, in the partition's line, too.",
        )
    if suspend_s is not None and suspend_s < _SHORT_SUSPEND_S:
        yield warning(
            Code.CONF_POWER_SAVING,
            f"SuspendTime is {suspend_s} s",
            "nodes are ended in pauses that are shorter than their boots: jobs wait, and more power"
            " is drawn than by idling",
            Mend(Place.SLURM_CONF, f"SuspendTime={_SUSPEND_S}"),
            advice="A few boots, in the partition's line, too.",
        )
    if config.get("ReturnToService", "").strip() == "0":
        yield hint(
            Code.CONF_POWER_SAVING,
            "ReturnToService is 0",
            "a node whose boot took longer than ResumeTimeout stays down until somebody resumes it",
            Mend(Place.SLURM_CONF, "ReturnToService=2"),
        )


def _spread(config: Mapping[str, str], managed: Iterable[PartitionView]) -> Iterator[Finding]:
    """Name what lets Slurm start jobs on the emptiest node first."""
    spreaders: list[tuple[str, Mend]] = []
    if _LEAST_LOADED in map(str.upper, conf_words(config, "SelectTypeParameters")):
        line = f"# take out of SelectTypeParameters: {_LEAST_LOADED}"
        spreaders.append(
            (f"SelectTypeParameters has {_LEAST_LOADED}", Mend(Place.SLURM_CONF, line))
        )
    spreaders.extend(
        (f"Partition {view.name} has {_SPREADS}", not_of_partition(view.name, _SPREADS))
        for view in managed
        if _SPREADS in view.words
    )
    for what, mend in spreaders:
        yield hint(
            Code.CONF_POWER_SAVING,
            what,
            "Slurm spreads jobs over all nodes, so few are ever empty: the same work took 17 to"
            " 27 % more joules in a simulation",
            mend,
            advice="Or leave it where jobs need what a node's jobs share more than power is worth.",
        )


def _seconds(config: Mapping[str, str], key: str) -> int | None:
    """Return the number at the beginning of ``60 sec``; None of INFINITE, or of nothing."""
    match = re.match(r"\d{1,12}", config.get(key, ""))
    return int(match[0]) if match else None
