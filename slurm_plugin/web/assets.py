"""The page's scripts and styles: read once, and addressed by what is in them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """Read every asset, by its name."""
    return {
        file.name: _asset(file) for file in sorted(directory.iterdir()) if file.suffix in _KINDS
    }


def _asset(file: Path) -> Asset:
    body = file.read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:_DIGITS]
    return Asset(f"/static/{digest}/{file.name}", _KINDS[file.suffix], body)
