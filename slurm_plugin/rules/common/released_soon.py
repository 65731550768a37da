"""What a service's slots will want of quota, once the launcher releases them."""

from typing import NamedTuple


class ReleasedSoon(NamedTuple):
    """Held slots of an array that the launcher wants and for which there is room now.

    Attributes:
        qos: the QOS in which they will be released.
        slots: their indices.
    """

    qos: str
    slots: frozenset[int]
