"""The page's scripts and styles: read once, and addressed by what is in them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slicewise.slurm_plugin.rules.pages.charts import CHART_CSS

TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "web"
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGITS = 16


@dataclass(frozen=True)
class Asset:
    """A file that browsers may keep for ever: another content has another address.

    Attributes:
        path: ``/static/HASH/NAME``.
    """

    path: str
    content_type: str
    body: bytes


def load_assets(directory: Path = TEMPLATES / "static") -> Mapping[str, Asset]:
    """Read every asset, by its name; ``charts.css`` is what reports of a month have, too."""
    files = (file for file in sorted(directory.iterdir()) if file.suffix in _KINDS)
    bodies = {"charts.css": CHART_CSS.encode()} | {file.name: file.read_bytes() for file in files}
    return {name: _asset(name, body) for name, body in bodies.items()}


def _asset(name: str, body: bytes) -> Asset:
    digest = hashlib.sha256(body).hexdigest()[:_DIGITS]
    return Asset(f"/static/{digest}/{name}", _KINDS[Path(name).suffix], body)
