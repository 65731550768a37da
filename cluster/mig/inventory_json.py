"""A node's inventory from JSON, as ``slicewise node probe --json`` and ``node cut`` print it."""

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from cluster.errors import OutsideError
from cluster.mig.inventory import Gpu, Inventory

_Read = TypeVar("_Read")
_INVENTORY = TypeAdapter(Inventory)
_GPU = TypeAdapter(Gpu)


def inventory_of(value: str | object) -> Inventory:
    """Of a JSON text, or of what ``json.loads`` has made of one; what else it says is left out.

    Raises OutsideError (SW-INVENTORY).
    """
    return _read(_INVENTORY, value)


def gpu_of(value: str | object) -> Gpu:
    """The same of one board."""
    return _read(_GPU, value)


def _read(kind: TypeAdapter[_Read], value: str | object) -> _Read:
    try:
        return kind.validate_json(value) if isinstance(value, str) else kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise OutsideError(
            "SW-INVENTORY",
            f"What a node says of its GPUs can't be read: {where}: {first['msg']}.",
            "Is Slicewise of the same version there?",
        ) from None
