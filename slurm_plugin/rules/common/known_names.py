"""Says which names there are where one was given that is not among them."""

from collections.abc import Collection
from difflib import get_close_matches

from slicewise.cluster.language.accounts import account_name

_FEW = 5


def names_text(name: str, names: Collection[str]) -> str:
    """Return all of a few names, as ``bio, nlp``; of many, how many there are and the nearest.

    ``402, the nearest vision, visions``; without similar ones ``402, none like it``.
    """
    if len(names) <= _FEW:
        return ", ".join(sorted(names)) or "none"
    near = ", ".join(get_close_matches(account_name(name), sorted(names), n=_FEW))
    return f"{len(names)}, " + (f"the nearest {near}" if near else "none like it")
