"""Turns a trace of requests into what one service gets: when each comes, and how long it takes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.service import ServiceSpec
from slicewise.simulation.rules.history.traced_request import TracedRequest
from slicewise.simulation.rules.services.service import EngineModel

PROMPT_TOKEN_S, OUTPUT_TOKEN_S = 0.000_2, 0.03
"""Seconds a token for a model of some 8 billion parameters on a slice: 5,000/s in, 33/s out."""
LOAD_S = 60.0
"""Seconds for which a replica loads where nobody has measured it, if its service allows so many."""
REQUEST_S = 1.0
"""Seconds of a request where neither trace nor engine say any."""
_LOADS_AS_A_START = "a replica of its pool that runs loads its model for as long as one starts"
TICK_S = 3.0
"""The longest tick of a clock that recorded a trace: requests of one moment came within it."""


@dataclass(frozen=True)
class EngineFigures:
    """What was measured of an engine; empty where nothing was.

    Attributes:
        loads_s: as in ``EngineModel``.
        seconds: mean seconds of a request, by requests that the replica works on.
        model_load_s: as in ``EngineModel``.
    """

    loads_s: tuple[float, ...] = ()
    seconds: Mapping[int, float] = field(default_factory=dict, hash=False)
    model_load_s: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """The requests of a service, and the engine for which their sizes hold.

    Attributes:
        assumed: what was not measured and is assumed, as the end of a sentence; "" if nothing is.
    """

    arrivals_s: tuple[float, ...]
    sizes: tuple[float, ...]
    engine: EngineModel
    assumed: str


def traffic(
    trace: Sequence[TracedRequest], figures: EngineFigures, spec: ServiceSpec, begin_s: float
) -> Traffic:
    """Let a trace begin at this Unix second.

    Where it says how long each request is worked on, a request takes that long in a replica that
    has nothing else to do. Otherwise requests differ by their tokens, and take in the mean what
    was measured; without any measurement each token takes the same time.
    """
    timed = [request.service_s for request in trace if request.service_s is not None]
    usual_s = _mean(timed)
    has_tokens = any(request.prompt_tokens or request.output_tokens for request in trace)
    if timed:
        seconds = [usual_s if request.service_s is None else request.service_s for request in trace]
    elif has_tokens:
        seconds = [
            PROMPT_TOKEN_S * request.prompt_tokens + OUTPUT_TOKEN_S * request.output_tokens
            for request in trace
        ]
    else:
        seconds = [REQUEST_S] * len(trace)
    mean_s = _mean(seconds) or REQUEST_S
    loads_s = figures.loads_s or (min(LOAD_S, float(spec.start_timeout_s)),)
    engine = EngineModel.measured(loads_s, figures.seconds or {1: mean_s})
    if timed:
        engine = EngineModel(loads_s, tuple(mean_s * slower for slower in engine.slower))
    engine = replace(engine, model_load_s=figures.model_load_s)
    assumed = (
        *([] if figures.loads_s else [f"a replica loads for {loads_s[0]:g} s"]),
        *([] if figures.model_load_s or spec.pool is None else [_LOADS_AS_A_START]),
        *([] if figures.seconds else [_assumed(is_timed=bool(timed), has_tokens=has_tokens)]),
    )
    return Traffic(
        tuple(begin_s + at_s for at_s in _spread([request.at_s for request in trace])),
        tuple(each / mean_s for each in seconds),
        engine,
        _listed(assumed),
    )


def _listed(words: Sequence[str]) -> str:
    *before, last = words or ("",)
    return ", and ".join((", ".join(before), last)) if before else last


def _assumed(*, is_timed: bool, has_tokens: bool) -> str:
    if is_timed:
        takes = "as long as its trace says"
    elif has_tokens:
        takes = (
            f"{1000 * PROMPT_TOKEN_S:g} ms for each token of its prompt and"
            f" {1000 * OUTPUT_TOKEN_S:g} ms for each of its answer"
        )
    else:
        takes = f"{REQUEST_S:g} s"
    return f"a request takes {takes}, however many others its replica works on"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _spread(times_s: Sequence[float]) -> Iterator[float]:
    """Spread requests of one moment evenly until the next one, over a tick at most."""
    first = 0
    for nth, at_s in enumerate(times_s):
        if nth + 1 < len(times_s) and times_s[nth + 1] == at_s:
            continue
        together = nth + 1 - first
        apart_s = TICK_S if nth + 1 == len(times_s) else min(TICK_S, times_s[nth + 1] - at_s)
        yield from (at_s + number * apart_s / together for number in range(together))
        first = nth + 1
