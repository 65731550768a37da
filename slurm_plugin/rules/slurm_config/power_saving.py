"""Checks what a site that lets Slurm power nodes down has set for it."""

import re
from collections.abc import Iterator, Mapping

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, hint, warning

_SHORT_RESUME_S, _RESUME_S = 300, 600
"""Servers with eight GPUs boot in three to four minutes, and check their memory now and then."""
_SHORT_SUSPEND_S, _SUSPEND_S = 300, 900
"""A boot draws no less than as many seconds of idling. Who waits for as long as what ending costs,
before it ends something, pays at most twice what would have been right."""


def power_findings(config: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return what makes nodes that are powered down slow, dear or lost.

    Nothing where Slurm powers none down. ``config`` is ``scontrol show config``.
    """
    has_programs = all(
        config.get(key, "(null)") not in {"", "(null)"}
        for key in ("SuspendProgram", "ResumeProgram")
    )
    return tuple(_findings(config)) if has_programs else ()


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


def _seconds(config: Mapping[str, str], key: str) -> int | None:
    """Return the number at the beginning of ``60 sec``; None of INFINITE, or of nothing."""
    match = re.match(r"\d{1,12}", config.get(key, ""))
    return int(match[0]) if match else None
