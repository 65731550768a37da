"""How much a service's backlog presses: a part of its slots' priority in Slurm."""

from launcher.decide.gateway import Load

_STEPS = 10


def urgency(load: Load, places: int) -> float:
    """From 0 (none waits) to 1 (some wait, and nobody serves), in tenths, rounded up.

    ``waiting / (waiting + places)``, with ``places`` requests served at once by the replicas that
    are up. So 0.5 says that as many wait as are served: the last of them waits for one request
    before it, at 0.9 for nine. Requests differ between services, so this counts in requests and
    not in seconds. In tenths because each change is a message to the daemon.
    """
    if not load.waiting:
        return 0.0
    return -(-_STEPS * load.waiting // (load.waiting + places)) / _STEPS
