"""How much a service's backlog presses, as part of its slots' priority in Slurm."""

from slicewise.launcher.rules.gateway.types import Load

_STEPS = 10


def urgency(load: Load, places: int) -> float:
    """Return the urgency, from 0 (no request waits) to 1 (some wait and no replica serves).

    It is ``waiting / (waiting + places)``, rounded up to tenths; ``places`` is how many requests
    the replicas that are up serve at the same time. At 0.5 as many requests wait as are served: the
    last of them waits for one request before it, at 0.9 for nine. Requests differ between services,
    so this counts in requests and not in seconds. It has steps of a tenth because each change is a
    message to the daemon.
    """
    if not load.waiting:
        return 0.0
    return -(-_STEPS * load.waiting // (load.waiting + places)) / _STEPS
