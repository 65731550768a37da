"""Writes and reads what a launcher and a pool's replica say to each other of a load.

The replica's ``pool_weights.py`` greets, is told what is to be loaded, and answers from where.
"""

from collections.abc import Collection

WEIGHTS = "slicewise-weights"
"""The name by which ALPN calls it."""
MOST_BYTES = 64
"""Bytes of the greeting, and of the answer, at most."""
_HIT = b"hit\n"


def load_line(model: str, kept: Collection[str]) -> bytes:
    """Say that a model is about to be loaded, beside those that the replica keeps.

    A tenant may give its models names that don't fit in; the copies of these may be removed.
    """
    plain = (name for name in sorted(kept) if name.isascii() and name.isprintable())
    return f"{' '.join((model, *(name for name in plain if ' ' not in name)))}\n".encode()


def is_from_node(answer: bytes) -> bool:
    """Whether the model is read from its copy on the node."""
    return answer == _HIT
