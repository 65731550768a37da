"""Shows what the doctor found, and the lines and commands that mend it."""

from collections.abc import Iterable, Sequence

from rich.padding import Padding
from rich.text import Text

from slicewise.cluster.language.findings import (
    TITLES,
    Finding,
    Place,
    SectionReport,
    Severity,
    key_of,
)
from slicewise.cluster.language.palette import style_of
from slicewise.cluster.language.printable import printable
from slicewise.cluster.runtime.console import console

_RESTARTS = (
    *("TaskPlugin", "ProctrackType", "SelectType", "GresTypes", "JobSubmitPlugins", "MpiParams"),
    *("AuthInfo", "PriorityType", "AccountingStorageType", "PreemptType", "MaxJobCount"),
    *("MaxArraySize", "PrioritySiteFactorPlugin", "AuthAlt", "SchedulerType"),
    *("AccountingStorageEnforce", "AccountingStorageTRES"),
)
"""Settings that Slurm's daemons read at their start only."""
_RESTARTING_WORD = "preempt_youngest_first"
"""A word of SchedulerParameters, of which the others are read at once."""
_END_JOBS = ("SelectType=", "ProctrackType=")
"""Settings whose change running jobs may not outlive."""
_INDENT = "  "


def print_reports(reports: Sequence[SectionReport], accepted: Sequence[str]) -> None:
    """Print a block for each finding, by section, and a summary at the end."""
    out = console()
    for report in reports:
        if not report.findings:
            continue
        out.print(Text(report.section, style="bold"))
        for finding in report.findings:
            out.print(_head(finding))
            out.print(Padding(_words(finding), (0, 0, 0, 2 * len(_INDENT)), expand=False))
            for line in _lines(finding):
                out.print(line, soft_wrap=True)
    counts = [finding.severity for report in reports for finding in report.findings]
    looked = [report.section for report in reports if not report.skipped]
    for report in reports:
        if report.skipped:
            out.print(Text(f"{report.section}: {report.skipped}", style="dim"), soft_wrap=True)
    if accepted:
        out.print(Text(f"accepted by slicewise.toml: {', '.join(accepted)}", style="dim"))
    if counts:
        out.print(Text(f"{_counted(counts)}. slicewise doctor --fix prints what mends them."))
    else:
        text = f"Looked at {', '.join(looked)}: nothing to mend."
        out.print(Text(text, style="green"))


def _head(finding: Finding) -> Text:
    text = Text(f"{_INDENT}{finding.severity.value:8}", style=style_of(finding.severity.value))
    text.append(finding.code, style="default")
    return text


def _words(finding: Finding) -> Text:
    words = f"{finding.what}: {finding.why}." if finding.why else f"{finding.what}."
    return Text(" ".join(filter(None, (words, finding.advice))))


def _lines(finding: Finding) -> Sequence[Text]:
    return [
        Text.assemble(_INDENT * 2, (f"{mend.place.value}: ", "dim"), (mend.line, "bold"))
        for mend in finding.mends
    ]


def _counted(counts: Sequence[Severity]) -> str:
    parts = [(counts.count(severity), severity.value) for severity in Severity]
    return ", ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in parts if n)


def _comment(text: str) -> str:
    """Return one line that no shell runs, whatever name of a file or a job is in the text."""
    return f"# {' '.join(printable(text).split())}"


def fix_text(findings: Sequence[Finding]) -> str:
    """Return the lines and commands that mend the findings, by place, in the order to apply them.

    Each line stands once, below the advice that belongs to it, which is a comment, as is what can't
    be given as a line.
    """
    lines: dict[Place, dict[str, None]] = {place: {} for place in Place}
    for finding in findings:
        if finding.mends and finding.advice:
            lines[finding.mends[0].place][_comment(finding.advice)] = None
        for mend in finding.mends:
            lines[mend.place][printable(mend.line)] = None
    conf, has_cgroup = lines[Place.SLURM_CONF], bool(lines[Place.CGROUP_CONF])
    if conf or has_cgroup:
        restarts = dict.fromkeys(_restarts(conf, has_cgroup=has_cgroup))
        lines[Place.RESTART] = {**restarts, **lines[Place.RESTART]}
    blocks = [
        "\n".join((f"# {TITLES[place]}", *lines[place], "")) for place in Place if lines[place]
    ]
    rest = [f"{_comment(finding.text)}\n" for finding in findings if not finding.mends]
    if rest:
        blocks.append("# to do in your own way\n" + "".join(rest))
    return "\n".join(blocks) or "# nothing to mend\n"


def _restarts(conf: Iterable[str], *, has_cgroup: bool) -> tuple[str, ...]:
    """Return what makes Slurm read the lines: some are read at a start only."""
    keys = [key_of(line) for line in conf]
    if has_cgroup or any(key.startswith(_RESTARTS) or _RESTARTING_WORD in key for key in keys):
        jobs = (
            "jobs: see above"
            if any(key.startswith(_END_JOBS) for key in keys)
            else "running jobs go on"
        )
        return (
            "systemctl restart slurmctld",
            f"systemctl restart slurmd    # on all nodes; {jobs}",
        )
    return ("scontrol reconfigure",)
