"""What ``slicewise simulate`` prints for people."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from slicewise.simulation.report.tables import (
    figures_table,
    nodes_table,
    services_table,
    tenants_table,
    trust_table,
)
from slicewise.simulation.rules.report.comparison import gains_words, tenant_differences
from slicewise.simulation.rules.report.figure_rows import (
    figure_rows,
    node_rows,
    service_rows,
    tenant_rows,
    trust_rows,
)
from slicewise.simulation.rules.report.figure_texts import (
    MEANINGS,
    SERVICE_MEANINGS,
    chance_text,
    span_text,
    trust_text,
)
from slicewise.simulation.rules.runs.run_figures import SimulationResult


def result_shown(result: SimulationResult) -> Iterator[RenderableType]:
    """How far to trust it, both policies side by side, the tenants, and what was left out."""
    yield Text(f"{span_text(result)}.")
    yield from _heading("How far to trust it")
    yield Text(trust_text(result.self_check, result.unchecked))
    if result.self_check is not None:
        yield trust_table(trust_rows(result.self_check))
    is_compared = result.changed is not None
    yield from _heading("Present and changed" if is_compared else "The present policy")
    yield figures_table(figure_rows(result))
    yield Text(f"{chance_text(result)} {MEANINGS}", style="dim")
    yield from _heading("Who gains and who loses" if is_compared else "Tenants")
    if is_compared:
        yield Text(gains_words(tenant_differences(result)))
    yield tenants_table(tenant_rows(result))
    if services := service_rows(result):
        yield from _heading("Services")
        yield services_table(services)
        yield Text(SERVICE_MEANINGS, style="dim")
    if nodes := node_rows(result):
        yield from _heading("Nodes")
        yield nodes_table(nodes)
    if result.notes:
        yield from _heading("What was left out or assumed")
        for note in result.notes:
            yield Text(f"- {note}")


def _heading(text: str) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(text, style="bold")
