"""``slicewise doctor``: one look at the whole site, and what mends each finding."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.exit_codes import ExitCode
from slicewise.cluster.language.findings import (
    Finding,
    SectionReport,
    Severity,
    exit_code_by,
    ordered,
)
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.cli.show_findings import fix_text, print_reports

_GATHERERS = (
    *("slicewise.slurm_plugin.cli.commands.doctor", "slicewise.launcher.cli.gateway_report"),
    "slicewise.launcher.cli.engines_report",
)
"""Modules that look at sections of a site: SECTIONS names them, ``reports`` looks."""


@dataclass(frozen=True)
class Findings:
    """What the doctor found: each finding's text, and the same by section with what mends it."""

    faults: Sequence[str]
    notes: Sequence[str]
    sections: Sequence[SectionReport]
    accepted: Sequence[str]


def doctor(
    section: Annotated[
        list[str] | None,
        typer.Option(help="Look at this section only; may be repeated.", show_default=False),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", help="The node's name in slurm.conf; this host's name if left out."),
    ] = None,
    host_root: Annotated[
        Path,
        typer.Option(
            envvar="SLICEWISE_HOST_ROOT",
            help="Where the node's /proc and /dev are, if this runs in a container.",
            show_default=False,
        ),
    ] = ROOT,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Print the lines and commands that mend it, in order; run none of them."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Look at the whole site, and say what is wrong, why it matters, and what mends it.

    Run it as root on slurmctld's host, on the gateway's host and on each GPU node: it looks at
    what belongs there, and changes nothing. Sections: settings, slurm, partitions, limits, script
    (job_submit.lua), ledger, daemon, web, gateway, engines, nodes, host. What can't be read is a
    finding, too. It works without the daemon.

    Exits 1 if it finds an error, 9 if it finds warnings only, 0 with hints or nothing. Codes that
    doctor.accept of slicewise.toml names are left out.
    """
    parts: Sequence[Any] = [import_module(name) for name in _GATHERERS]
    sections = [name for part in parts for name in part.SECTIONS]
    wanted = _wanted(section, sections)
    all_reports = [report for part in parts for report in part.reports(wanted, node, host_root)]
    reports, accepted = _without_accepted(all_reports)
    findings = ordered(tuple(finding for report in reports for finding in report.findings))
    if as_json:
        print_json(_document(reports, findings, accepted))
    elif fix:
        console().print(fix_text(findings), markup=False, highlight=False, soft_wrap=True, end="")
    else:
        print_reports(reports, accepted)
    if (code := exit_code_by(finding.severity for finding in findings)) is not ExitCode.DONE:
        raise typer.Exit(code)


def _wanted(section: list[str] | None, sections: Sequence[str]) -> Collection[str]:
    for name in section or ():
        if name not in sections:
            raise typer.BadParameter(f"--section {name}: choose of {', '.join(sections)}.")
    return section or sections


def _without_accepted(
    reports: Sequence[SectionReport],
) -> tuple[tuple[SectionReport, ...], tuple[str, ...]]:
    """Return the reports without what the site accepts, and the codes of what was left out."""
    try:
        accepts = load_settings().doctor.accept
    except SlicewiseError:
        accepts = ()
    kept = tuple(
        replace(
            report, findings=ordered(tuple(f for f in report.findings if f.code not in accepts))
        )
        for report in reports
    )
    codes = {f.code for report in reports for f in report.findings}
    return kept, tuple(code for code in dict.fromkeys(accepts) if code in codes)


def _document(
    reports: Sequence[SectionReport], findings: Sequence[Finding], accepted: Sequence[str]
) -> Findings:
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    notes = [finding.text for finding in findings if finding not in errors]
    return Findings([error.text for error in errors], notes, reports, accepted)
