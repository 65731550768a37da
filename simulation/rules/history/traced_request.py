"""One request of a trace, as a simulation plays it."""

from typing import NamedTuple


class TracedRequest(NamedTuple):
    """One request.

    Attributes:
        at_s: seconds since the first one of the trace.
        service_s: seconds that a replica works on it; None if the trace has tokens instead.
        blocks: which blocks of ``RequestTrace.block_tokens`` tokens the prompt has (``hash_ids``).
    """

    at_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    service_s: float | None = None
    blocks: tuple[int, ...] = ()
