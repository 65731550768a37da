"""The documentation, as far as it can be checked without Sphinx; ``make docs`` checks the rest."""

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def listed(page: Path) -> Iterator[Path]:
    """The pages that the toctrees of a page name."""
    for block in _TOCTREE.findall(page.read_text(encoding="utf-8")):
        for entry in block.splitlines():
            if entry and not entry.startswith(":"):
                found = sorted(page.parent.glob(f"{entry}.md"))
                assert found, f"{page}: {entry} is no page"
                yield from (one for one in found if one != page)


def test_every_page_is_in_a_table_of_contents():
    pages = sorted(DOCS.rglob("*.md"))
    found = {one for page in pages for one in listed(page)}
    assert [one for one in pages if one not in found] == [DOCS / "index.md"]
