"""Shows measurements and their progress to users."""

from collections.abc import Sequence

from rich.text import Text

from cluster.language.jobs import JobState, JobView
from cluster.language.measurements import Measurement
from cluster.runtime.console import FittingTable, column
from launcher.profiling.figures import numbers
from launcher.profiling.jobs import Progress


def progress_table(seen: Sequence[Progress]) -> FittingTable:
    """Return a table with a line for each job."""
    return FittingTable(
        (
            column("GPU type", (one.job.gres_type for one in seen)),
            column("job", (one.job.job_id for one in seen), right=True),
            column("", map(progress_text, seen)),
        )
    )


def progress_text(one: Progress) -> Text:
    """Return what a job does now."""
    done, failed = numbers(one.points)
    if one.is_complete:
        what = f"{done} points measured" + (f", {failed} of them can't be served" if failed else "")
        return Text(what, style="green")
    if one.view is not None and one.view.state is JobState.ENDED:
        return Text(f"{one.view.ended.lower()} after {done} points", style="red")
    if one.view is not None and one.view.state is JobState.PENDING:
        return Text(_waiting(one.view), style="yellow")
    if one.begun is None:
        return Text("Triton starts" if one.view is not None else "submitted", style="yellow")
    now = one.begun
    where = f"measuring {now.number} of {one.job.points}"
    return Text(f"{where}: batch {now.batch}, {_processes(now.processes)}")


def _waiting(view: JobView) -> str:
    if view.reason == "None":
        return "submitted"
    return f"waits ({view.reason}); why: slicewise why {view.job_id}"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def measurements_table(rows: Sequence[Measurement]) -> FittingTable:
    """Return a table with a line for each measurement; one that can't be served has its reason."""
    return FittingTable(
        (
            column("model", (one.model for one in rows)),
            column("GPU model", (one.board for one in rows), rank=2),
            column("type", (one.type for one in rows)),
            column("batch", (one.batch for one in rows), right=True),
            column("processes", (one.processes for one in rows), right=True),
            column("requests/s", map(_rate, rows), right=True),
            column("p95 ms", map(_latency, rows), right=True),
            column("samples", (one.samples for one in rows), right=True, rank=1),
            column("", map(_remark, rows), folds=True),
        )
    )


def _rate(row: Measurement) -> str:
    return f"{row.throughput_mrps / 1000:,.1f}" if row.throughput_mrps else "-"


def _latency(row: Measurement) -> str:
    return f"{row.latency_us / 1000:,.1f}" if row.throughput_mrps else "-"


def _remark(row: Measurement) -> Text:
    if not row.throughput_mrps:
        return Text(row.reason, style="red")
    return Text("" if row.steady else "not steady", style="yellow")
