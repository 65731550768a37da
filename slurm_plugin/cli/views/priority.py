"""The screen of ``slicewise why --priority``."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.rpc.read_messages import PriorityAnswer, PriorityTerm
from slicewise.cluster.runtime.console import FittingTable, column, time_text
from slicewise.slurm_plugin.cli.views.texts import NOTHING


def screen(answer: PriorityAnswer) -> RenderableType:
    """Headline, the terms, Slurm's factors, and which jobs go before it."""
    return Group(
        Text(_headline(answer), style="bold"),
        _terms_table(answer),
        Text(_site_factor_text(answer)),
        *_factors_table(answer),
        Text(place_text(answer)),
    )


def _headline(answer: PriorityAnswer) -> str:
    rest = f" ({answer.tasks} tasks)" if answer.tasks > 1 else ""
    total = "" if answer.priority is None else f": priority {answer.priority:,}"
    return f"Job {answer.job}{rest} of {answer.tenant}{total}"


def _terms_table(answer: PriorityAnswer) -> FittingTable:
    return FittingTable(
        (
            column("term", (term.name for term in answer.terms)),
            column("value", (f"{term.value:.2f}" for term in answer.terms), right=True),
            column("weight", (_weight(term) for term in answer.terms), right=True),
            column("points", (f"{term.points:,}" for term in answer.terms), right=True),
            column("", (_meaning(term, answer) for term in answer.terms), folds=True, rank=1),
        )
    )


def _weight(term: PriorityTerm) -> object:
    return NOTHING if term.weight is None else term.weight


def _meaning(term: PriorityTerm, answer: PriorityAnswer) -> str:
    match term.name:
        case "class":
            return answer.job_class
        case "share":
            return f"what {answer.tenant} has used lately, beside its guaranteed quota"
        case "urgency":
            return "of a service's backlog"
        case "smallness":
            return "how little it asks for: slices × time limit"
        case "passed_over":
            return "its GPUs are free, and no job before it waits for such"
        case _:
            return f"{_span(answer.wait_s)} of {_span(answer.wait_full_s)}"


def _site_factor_text(answer: PriorityAnswer) -> str:
    now = f"site_factor {answer.site_factor:,} of {answer.max:,}"
    if answer.site_factor_in_slurm is None:
        return f"{now}; Slurm shows none of it yet."
    if answer.site_factor_in_slurm == answer.site_factor:
        return f"{now}, and so Slurm has it."
    why = f"differences below {answer.quantum} are not written"
    return f"{now}; Slurm has {answer.site_factor_in_slurm:,} ({why})."


def _factors_table(answer: PriorityAnswer) -> Iterator[RenderableType]:
    """A table of Slurm's own factors that count at this site, if there are any."""
    counting = [
        factor for factor in answer.factors if factor.points or factor.weight not in {"", "0"}
    ]
    if counting:
        yield FittingTable(
            (
                column("Slurm's own factor", (factor.name for factor in counting)),
                column("weight", (factor.weight or NOTHING for factor in counting), right=True),
                column("points", (f"{factor.points:,}" for factor in counting), right=True),
            )
        )


def place_text(answer: PriorityAnswer) -> str:
    """Say how many jobs go before it, and from when on no newer job does."""
    return " ".join(_place(answer))


def _place(answer: PriorityAnswer) -> Iterable[str]:
    if answer.ahead:
        own = f", {answer.ahead_own:,} of them of {answer.tenant}" if answer.ahead_own else ""
        noun = "job goes" if answer.ahead == 1 else "jobs go"
        yield f"{answer.ahead:,} {noun} before it{own}."
    else:
        yield "No job goes before it."
    bound = "no job that began to wait later goes before it"
    if answer.wait_s >= answer.wait_full_s:
        yield f"It has waited its {_span(answer.wait_full_s)}: {bound},"
    else:
        yield f"From {time_text(answer.full_s)} on {bound},"
    if answer.others_at_most:
        yield f"but for what Slurm's own factors may give it ({answer.others_at_most:,} at most)."
    else:
        yield "whatever its class and tenant."


def _span(seconds: int) -> str:
    """A duration: ``90 s``, ``14 min``, ``3.5 h``, ``2.0 d``; a unit is used from two of it on."""
    for unit, length_s in (("d", 86_400), ("h", 3600)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds // 60} min" if seconds >= 2 * 60 else f"{seconds} s"
