"""Makes pages that are kept, sent and printed: one HTML file that asks for nothing else."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from slicewise.cluster.language.printable import printable
from slicewise.slurm_plugin.page.assets import TEMPLATES
from slicewise.slurm_plugin.rules.pages.charts import CHART_CSS

if TYPE_CHECKING:
    from jinja2 import Environment


def kept_page(template: str, **values: object) -> str:
    """Return the page of a template that extends ``kept.html.j2``, with the style of charts.

    Whatever text the values hold is escaped, and shows nothing that a terminal or an editor would
    obey.
    """
    return _environment().get_template(template).render(css=CHART_CSS, **values)


@cache
def _environment() -> "Environment":
    return environment_of(_inert)


def environment_of(finalize: Callable[[Any], Any]) -> "Environment":
    """The environment of all templates here; ``finalize`` is applied to each value."""
    from jinja2 import (  # noqa: PLC0415 -- not for --help
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _inert(value: Any) -> Any:
    """Plain text with what is not printable replaced; what is HTML already as it is."""
    return printable(value) if type(value) is str else value
