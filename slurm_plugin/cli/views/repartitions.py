"""Plans and repartitions, for people and as JSON."""

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    PlannedRepartition,
    Repartition,
    RepartitionStep,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)
from slicewise.cluster.runtime.console import Facts, FittingTable, column, time_text, toned
from slicewise.slurm_plugin.cli.views.texts import (
    NOTHING,
    slice_seconds_text,
    times_column,
    took_text,
)
from slicewise.slurm_plugin.rules.mig.node_checks import change_text
from slicewise.slurm_plugin.rules.mig.problem import PlanInput

_FREE = "free slices"


def plan_table(planned: Sequence[PlannedRepartition]) -> FittingTable:
    """A line per GPU, the best first."""
    gains = [slice_seconds_text(repartition.gain_millislice_s) for repartition in planned]
    drained = [slice_seconds_text(repartition.drained_millislice_s) for repartition in planned]
    return FittingTable(
        (
            column("node", (repartition.node for repartition in planned)),
            column("GPU", (repartition.gpu for repartition in planned), rank=3),
            column(
                "change",
                (change_text(repartition.before, repartition.after) for repartition in planned),
                folds=True,
            ),
            column(
                "moves",
                (", ".join(repartition.moves) or NOTHING for repartition in planned),
                folds=True,
            ),
            column(
                "ends",
                (", ".join(repartition.ends) or NOTHING for repartition in planned),
                folds=True,
            ),
            column("gain (slice-s)", gains, right=True, rank=1),
            column("drained", drained, right=True, rank=1),
            column("why", (repartition.reason for repartition in planned), folds=True, rank=2),
        )
    )


def guaranteed_lines(boards: Mapping[str, PlanInput]) -> Iterator[str]:
    """Lines that say which instances of each model stay because guarantees need them."""
    for model, board in sorted(boards.items()):
        counts = sorted(board.demand.guaranteed.items())
        if words := ", ".join(f"{count} {profile}" for profile, count in counts):
            yield f"Kept on {model} for guarantees: {words}."


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """Nodes for which no plan could be made, and why."""
    return [f"{node} is left out: {why}" for node, why in sorted(left_out.items())]


def dry_run_lines(planned: PlannedRepartition) -> list[str]:
    """Lines that say what would be done on a GPU, one for each step."""
    gone = [placement for placement in planned.before if placement not in planned.after]
    words = {
        RepartitionStep.RESERVE: f"a reservation lets nothing new start on {planned.node}",
        RepartitionStep.MOVE: _move_words(planned, gone),
        RepartitionStep.CUT: f"{planned.gpu}: {change_text(planned.before, planned.after)}",
        RepartitionStep.TELL: f"{planned.node} in gres.conf and slurm.conf;"
        " slurmctld and slurmd restart",
        RepartitionStep.VERIFY: f"{planned.gpu} has {placements_text(planned.after) or _FREE}",
        RepartitionStep.RESUME: "the reservation ends",
    }
    return [f"{planned.node}  {step:<7}  {text}" for step, text in words.items()]


def _move_words(planned: PlannedRepartition, gone: Sequence[Placement]) -> str:
    words = []
    if planned.moves:
        words.append(f"{', '.join(planned.moves)}: a successor first, then the end")
    if planned.ends:
        words.append(f"{', '.join(planned.ends)}: requeued, for a job that is owed its type")
    if words:
        return "; ".join(words)
    return f"wait until no job holds {placements_text(gone)}" if gone else "nothing is destroyed"


def step_line(repartition: Repartition, record: RepartitionStepRecord) -> Text:
    """``gpu01  7  cut  0.8 s  1g.10gb@4,... to 3g.40gb@4``; without a time while it goes on."""
    back = " back" if record.direction is Direction.BACK else ""
    text = Text(f"{repartition.node}  {repartition.repartition_id}  {record.step + back:<12}")
    if record.took_s is None:
        return text.append("  …", style="dim")
    failed = record.outcome is RepartitionStepOutcome.FAILED
    text.append(f"  {record.took_s:6.1f} s  ")
    return text.append(record.words, style="red" if failed else "")


def history_table(repartitions: Sequence[Repartition]) -> FittingTable:
    """One line per repartition, newest first."""
    return FittingTable(
        (
            column("id", (repartition.repartition_id for repartition in repartitions), right=True),
            times_column(
                "started", (int(repartition.started_s) for repartition in repartitions), rank=1
            ),
            column("node", (repartition.node for repartition in repartitions)),
            column("GPU", (repartition.gpu for repartition in repartitions), rank=3),
            column("change", (change_text(r.before, r.after) for r in repartitions), folds=True),
            column(
                "state",
                (toned(repartition.state) for repartition in repartitions),
            ),
            column(
                "s", (took_text(repartition.took_s) for repartition in repartitions), right=True
            ),
            column(
                "error",
                (repartition.error or NOTHING for repartition in repartitions),
                folds=True,
                rank=2,
            ),
        )
    )


def repartition_facts(repartition: Repartition) -> Facts:
    """One repartition; its steps are in ``steps_table``."""
    rows = {
        "node": Text(repartition.node),
        "GPU": Text(repartition.gpu),
        "before": Text(placements_text(repartition.before) or _FREE),
        "after": Text(placements_text(repartition.after) or _FREE),
        "moves": Text(", ".join(repartition.moves) or "none"),
        "ends": Text(", ".join(repartition.ends) or "none"),
        "why": Text(repartition.reason),
        "gain": Text(f"{slice_seconds_text(repartition.gain_millislice_s)} slice-seconds"),
        "drained": Text(f"{slice_seconds_text(repartition.drained_millislice_s)} slice-seconds"),
        "started": Text(f"{time_text(int(repartition.started_s))} by {repartition.author}"),
        "state": toned(repartition.state),
        "error": Text(repartition.error or "none"),
    }
    return Facts(tuple(rows.items()))


def steps_table(records: Sequence[RepartitionStepRecord]) -> FittingTable:
    """One line per step, in the order in which they began."""
    return FittingTable(
        (
            column("step", (record.step for record in records)),
            column("way", (record.direction for record in records)),
            times_column("started", (int(record.started_s) for record in records), rank=1),
            column("s", (took_text(record.took_s, 2) for record in records), right=True),
            column("outcome", (record.outcome for record in records)),
            column("what", (record.words or NOTHING for record in records), folds=True),
        )
    )
