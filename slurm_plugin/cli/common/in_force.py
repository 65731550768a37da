"""Waits until a change of quotas is in force in Slurm, and says why it is not yet."""

import time

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.slurm_plugin.common.tenant_requests import InForceRequest

_PATIENCE_S = 5.0
_ASK_S = 8.0
"""Seconds that the daemon waits for one answer; less than its client does."""


def until_in_force(
    daemon: DaemonClient, change_id: int, began_s: float, wait_s: float | None
) -> tuple[float | None, str]:
    """Wait until Slurm's limits have the change, for 5 s if ``wait_s`` is None.

    Returns the seconds since ``began_s`` (monotonic), None if they don't have it yet; and the same
    in words, as ``in force in Slurm (0.8 s)``. Where they never will, because Slicewise was taken
    out of Slurm or the daemon sets no limits, nothing is waited for.
    """
    until_s = began_s + (_PATIENCE_S if wait_s is None else wait_s)
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        try:
            answer = daemon.call(InForceRequest(change_id=change_id, wait_s=min(left_s, _ASK_S)))
        except SlicewiseError as error:
            return None, (
                "recorded, and not in force yet: the daemon gives no answer"
                f" ({error.refusal.code}); it follows when it runs again, or by slicewise compile"
            )
        if answer.in_force:
            took_s = time.monotonic() - began_s
            return took_s, f"in force in Slurm ({took_s:.1f} s)"
        if answer.sets_no_limits or time.monotonic() >= until_s:
            return None, f"recorded, and not in force yet: {answer.why_not}"
