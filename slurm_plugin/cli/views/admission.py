"""Table and document of ``slicewise admission status``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import computed_field
from rich.text import Text

from slicewise.cluster.rpc.messages import StatusAnswer
from slicewise.cluster.runtime.console import FittingTable, column, console
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED


@dataclass(frozen=True)
class Here:
    """What is known without the daemon.

    Attributes:
        on_disk: version of slicewise.lua on disk.
        off_file: path of the kill switch.
        problem: why slurmctld's Lua can't run slicewise.lua; "" if it can.
        has_old_lines: whether the lines in job_submit.lua differ from what would be proposed now.
    """

    on_disk: str
    off_file: Path
    problem: str
    has_old_lines: bool = False

    @computed_field
    @property
    def is_off(self) -> bool:
        """Whether the kill switch is set, so that slicewise.lua does nothing."""
        return self.off_file.exists()


@dataclass(frozen=True)
class AdmissionStatus:
    """slicewise.lua on this host, what the daemon says, null if it does not answer, what to do."""

    daemon: StatusAnswer | None
    here: Here
    advice: Sequence[str]


def print_status(status: AdmissionStatus, now_s: float) -> None:
    """Print a row for each part, and what to do about parts that are not as they should be."""
    rows = _rows(status.daemon, status.here, now_s)
    out = console()
    out.print(FittingTable((column("part", rows), column("state", rows.values(), folds=True))))
    for line in status.advice:
        out.print(Text(line, style="yellow"), soft_wrap=True)


def _rows(answer: StatusAnswer | None, here: Here, now_s: float) -> dict[str, str]:
    known = {
        "slicewise.lua on disk": here.on_disk,
        "kill switch": f"{here.off_file} is there" if here.is_off else "not set",
    }
    if answer is None:
        return {**known, "daemon": "gives no answer"}
    loaded = f"{answer.module}, mode {answer.module_mode}" if answer.module else "never asked"
    ago = (
        ""
        if answer.module_asked_s is None
        else f", asked {now_s - answer.module_asked_s:.0f} s ago"
    )
    sees = "complete" if answer.complete else "Slurm does not answer"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(answer.decisions.items()))
    return {
        "slicewise.lua loaded": f"{loaded}{ago}",
        **known,
        "daemon": f"{answer.version}, {_mode(answer)}, on {answer.host}",
        "leads": "yes" if answer.is_leader else "no, another daemon does",
        "last look at Slurm": f"{now_s - answer.observed_s:.1f} s ago, {sees}",
        "decisions": counts or "none yet",
        "jobs that passed it by": str(answer.unadmitted),
    }


def _mode(answer: StatusAnswer) -> str:
    return "uninstalled" if answer.is_uninstalled else f"mode {answer.mode}"


def advice(answer: StatusAnswer | None, here: Here, now_s: float) -> list[str]:
    """Say which parts are not as they should be, and what to do about them."""
    found = []
    if here.is_off:
        found.append("slicewise.lua does nothing: slicewise admission on")
    if here.problem:
        found.append(
            f"slurmctld can't run slicewise.lua, so no job is asked about: {here.problem} Once"
            " that is fixed: slicewise admission install, and touch job_submit.lua."
        )
    if here.has_old_lines:
        found.append(
            "The lines in job_submit.lua are not those that would be proposed now: nodes,"
            " partitions, settings or Slicewise have changed. slicewise admission install shows"
            " the difference."
        )
    if answer is None:
        return found
    if answer.is_uninstalled:
        found.append(UNINSTALLED.text())
    if answer.unadmitted and answer.unadmitted_s is not None:
        found.append(
            f"{answer.unadmitted} jobs got GPUs, or wait for them, without slicewise.lua, the"
            f" newest {now_s - answer.unadmitted_s:.0f} s ago: slurmctld did not run it, or it was"
            " off or not in mode enforce. slurmctld's log says why (slicewise, lua)."
        )
    if not answer.module:
        found.append(
            "slicewise.lua has not asked this daemon yet. It should once a GPU job is submitted:"
            " check that JobSubmitPlugins=lua is set. slicewise admission install"
        )
    elif answer.module != here.on_disk:
        found.append(
            f"slurmctld runs version {answer.module}, on disk is {here.on_disk}: touch"
            " job_submit.lua, slurmctld reads both again at the next job."
        )
    if answer.module and answer.module_mode != answer.mode:
        found.append(
            f"slicewise.lua is in mode {answer.module_mode}, the daemon in {answer.mode}:"
            " docs/explanation/daemon.md, Modes, says what that means."
        )
    return found
