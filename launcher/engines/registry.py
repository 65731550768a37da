"""The engines, by the name that a service file gives as ``engine``."""

from collections.abc import Mapping

from launcher.engines.engine import Engine
from launcher.engines.triton import Triton

_DEFAULT = "triton"
ENGINES: Mapping[str, Engine] = {"triton": Triton()}


def engine_of(directives: Mapping[str, str]) -> Engine:
    """Return the engine that a service's directives name.

    If they name none, that is Triton; also if they name one that is not known, as a newer Slicewise
    has: its replicas never prove to be ours.
    """
    return ENGINES.get(directives.get("engine", _DEFAULT), ENGINES[_DEFAULT])
