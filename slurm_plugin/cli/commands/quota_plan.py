"""``slicewise tenant-quota apply FILE``: shows what a change of quotas does, and has it made."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.in_force import until_in_force
from slicewise.slurm_plugin.cli.common.options import authored, require_in_force
from slicewise.slurm_plugin.cli.common.quota_file import quota_file_text
from slicewise.slurm_plugin.cli.views import quota_plan as present
from slicewise.slurm_plugin.cli.views.limits import differences_table
from slicewise.slurm_plugin.common.quota_file_requests import (
    MOST_BYTES,
    QuotaApplyRequest,
    QuotaFileAnswer,
    QuotaFileRequest,
    packed,
)
from slicewise.slurm_plugin.rules.explain.change_report import ChangeReport
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.quota.quota_file import unreadable


@dataclass(frozen=True)
class AppliedFile:
    """What a file of quotas would do, or did."""

    change: ChangeReport
    differences: Sequence[Difference]
    commands: Sequence[Sequence[str]]
    applied: bool
    in_force_after_s: float | None


def apply(
    file: Path,
    *,
    dry_run: bool,
    overcommit: bool,
    reason: str,
    timeout_s: int | None,
    as_json: bool,
) -> None:
    """Run ``slicewise tenant-quota apply``: print what the file does, or would do."""
    daemon, asked = DaemonClient(load_settings().daemon), _asked(file)
    changed_s = time.monotonic()
    if dry_run:
        answer = daemon.call(QuotaFileRequest.of(**asked))
    else:
        request = QuotaApplyRequest.of(**asked, overcommit=overcommit, **authored(reason))
        answer = daemon.call(request)
    if not as_json:
        _print_plan(answer)
    took_s, force = None, ""
    if answer.change_id is not None:
        took_s, force = until_in_force(daemon, answer.change_id, changed_s, timeout_s)
    if as_json:
        print_json(_shown(answer, took_s=took_s))
    elif not dry_run:
        console().print(Text(f"Changed: {force}."))
    else:
        console().print(Text(f"Nothing was changed. To set it: the same {_apply_words(answer)}"))
        console().print(Text(_last_month_words(file)))
    if not dry_run:
        require_in_force(took_s, timeout_s)


def _asked(file: Path) -> dict[str, str]:
    """Return the file as requests have it; raises InvalidInputError (SW-INPUT-FILE)."""
    text = packed(quota_file_text(file))
    if text is None:
        raise unreadable(str(file), f"it is too long: {MOST_BYTES // 1024} KiB is the most.")
    return {"packed": text, "file": str(file)}


def _apply_words(answer: QuotaFileAnswer) -> str:
    """Say with which options the plan is applied; --overcommit if it needs that."""
    overcommit = "--overcommit " if answer.change.needs_overcommit else ""
    return f"without --dry-run, with {overcommit}--reason 'WHY'"


def _last_month_words(file: Path) -> str:
    """Say which commands simulate the change."""
    return (
        "What it would have done to last month: slicewise snapshot site.zip --days 31, then"
        f" slicewise simulate site.zip --change {shlex.quote(str(file))}"
    )


def _print_plan(answer: QuotaFileAnswer) -> None:
    for shown in present.change_shown(answer.change):
        console().print(shown)
    if not answer.change.harms:
        console().print("\nIt would harm no job or tenant.")
    if answer.differences:
        console().print("\nIn Slurm:")
        console().print(differences_table(answer.differences))


def _shown(answer: QuotaFileAnswer, *, took_s: float | None) -> AppliedFile:
    return AppliedFile(
        change=answer.change,
        differences=answer.differences,
        commands=answer.commands,
        applied=answer.change_id is not None,
        in_force_after_s=took_s,
    )
