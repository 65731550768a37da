"""How much memory replicas that share models have."""

from slicewise.cluster.language.service import DEFAULT_MEMORY_MIB, whole_number
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.engines.engine import PooledEngine
from slicewise.launcher.rules.engines.registry import engine_of
from slicewise.launcher.rules.pools.server_memory import ServerMemory

USED = 0.9
"""Share of a replica's memory for models: the rest is for contexts and what requests need."""


def memory_mib(view: ServiceView) -> int | None:
    """Return the memory for models of a generation's replicas, in MiB; None if it is not known."""
    memory, engine = replica_memory(view), engine_of(view.directives)
    rooms_mib = [room_mib(memory.gpu_mib or None, 1)]
    if isinstance(engine, PooledEngine) and engine.has_host_weights:
        rooms_mib.append(room_mib(memory.host_mib, 1))
    return min((one_mib for one_mib in rooms_mib if one_mib is not None), default=None)


def room_mib(memory_mib: int | None, gpus: int) -> int | None:
    """Return the memory for models of a replica, by that of each of its GPUs; None if not known."""
    return None if memory_mib is None else int(USED * memory_mib * gpus)


def replica_memory(view: ServiceView) -> ServerMemory:
    """Return the memory that each replica of a generation has."""
    values = view.directives
    return ServerMemory(
        whole_number(values, "memory_mib", DEFAULT_MEMORY_MIB),
        (view.memory_mib or 0) * whole_number(values, "gpus", 1),
    )
