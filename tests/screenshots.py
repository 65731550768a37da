"""Takes pictures of web pages: of each at two widths, light and dark.

``python tests/screenshots.py FILE`` reads a JSON list of pages, each with ``name``, ``url``,
``cookie`` (NAME=VALUE) and, if its picture goes into the documentation, ``in_docs``. The pictures
are build/reports/screens/NAME-WIDTH-SCHEME.png; those for the documentation, of the wide page in
the light, docs/images/NAME.png. The exit code is 1 if anything was wrong with a page.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from browser import NARROW, PROGRAMS, WIDE, Browser, Scheme, Viewer, browser_up, installed
from PIL import Image

_PROJECT = Path(__file__).resolve().parent.parent
_SCREENS = _PROJECT / "build" / "reports" / "screens"
_IMAGES = _PROJECT / "docs" / "images"
MOST_BYTES = 150_000
"""Of a picture in the documentation: every clone has it for ever."""
_COLORS = 256


@dataclass(frozen=True)
class Shown:
    """A page, and the cookie of the user who sees it."""

    name: str
    url: str
    cookie: str
    in_docs: bool = False


async def take(browser: Browser, page: Shown, screens: Path, images: Path) -> list[str]:
    """Take the pictures of a page; return what was wrong with it."""
    site, path = _parts(page.url)
    name, _, value = page.cookie.partition("=")
    async with browser.page(Viewer(site, {name: value})) as opened:
        await opened.open(path)
        for width, scheme in product((WIDE, NARROW), get_args(Scheme)):
            file = screens / f"{page.name}-{width}-{scheme}.png"
            await opened.shot(file, width, scheme)
            _make_small(file)
        chosen = _for_docs(page, screens, images) if page.in_docs else ()
        return [f"{page.name}: {trouble}" for trouble in (*opened.troubles, *chosen)]


def _for_docs(page: Shown, screens: Path, images: Path) -> Iterator[str]:
    """Copy the picture; yield what is wrong with it."""
    picture = screens / f"{page.name}-{WIDE}-light.png"
    if (size := picture.stat().st_size) > MOST_BYTES:
        yield f"its picture has {size:,} bytes, more than {MOST_BYTES:,}"
        return
    shutil.copyfile(picture, images / f"{page.name}.png")


def _make_small(file: Path) -> None:
    """Keep as many colors as a palette has: a page has few, and shades of its letters' edges."""
    with Image.open(file) as picture:
        reduced = picture.convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def _parts(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    site = f"{parts.scheme}://{parts.netloc}"
    return site, url.removeprefix(site)


async def _take_all(program: str, pages: Sequence[Shown]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        async with browser_up(program, Path(folder)) as browser:
            return [one for page in pages for one in await take(browser, page, _SCREENS, _IMAGES)]


def main(file: Path) -> None:
    """Take the pictures of all pages in the file, and print what was wrong with them."""
    program = installed()
    if program is None:
        sys.exit(f"none of {', '.join(PROGRAMS)} is installed")
    pages = [Shown(**one) for one in json.loads(file.read_text(encoding="utf-8"))]
    for folder in (_SCREENS, _IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    sys.exit("\n".join(asyncio.run(_take_all(program, pages))) or None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
