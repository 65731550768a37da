"""Templates of the sandbox's configuration files."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "sandbox"


@cache
def _environment() -> Environment:
    return Environment(  # noqa: S701 -- no HTML: configuration files
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: object) -> str:
    """Return the template's text. All values are the sandbox's own; users choose none of them."""
    return _environment().get_template(template).render(**values)
