"""Reads the public traces as workloads.

studies/autoscale/README.md says what each trace is and where it comes from. The traces
are not in this repository: ``--traces`` or SLICEWISE_TRACES says where they lie.
"""

import csv
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from slicewise.simulation.history.requests import read_requests
from slicewise.simulation.rules.services.traffic import OUTPUT_TOKEN_S, PROMPT_TOKEN_S
from studies.autoscale import bursts, servegen
from studies.autoscale.workload import (
    FULL_REPLICAS,
    Floats,
    Workload,
    busiest,
    draw_starts,
    enough,
    fitting_concurrency,
    warm_up_s,
)

_DAY_S = 86_400
_MOST_REQUESTS = 300_000
_PLAIN_MEAN_S, _PLAIN_SIGMA = 5.0, 0.8
_LONGEST_MEAN_S = 30.0
_FEWEST_REQUESTS = 2
_LOADS = "alibaba_gentd26_basemodel_update_latency_anon.csv.xz"

Requests = tuple[Floats, Floats]
"""Arrivals (ascending, from 0 on) and seconds of service."""
Reader = Callable[[Path, np.random.Generator], Requests]


class TraceError(Exception):
    """A trace is not there or not in a known format. The message says what to do."""


def _azure_tokens(path: Path, _: np.random.Generator) -> Requests:
    """Azure's trace: arrival times and tokens of one hour."""
    return _tokens(path)


def _mooncake_tokens(path: Path, rng: np.random.Generator) -> Requests:
    """Mooncake's trace: its clock ticks each 3 s, and arrivals are spread over a tick."""
    times, tokens = _tokens(path)
    return _from_zero(_spread(times, rng), tokens)


def _tokens(path: Path) -> Requests:
    require(path)
    found = read_requests(path).requests
    tokens = [(one.prompt_tokens, one.output_tokens) for one in found]
    return np.array([one.at_s for one in found]), np.array(tokens)


def _by_tokens(read: Reader) -> Reader:
    """Take the seconds of service from tokens."""

    def seconds(path: Path, rng: np.random.Generator) -> Requests:
        arrivals, tokens = read(path, rng)
        return arrivals, token_seconds(tokens).sum(axis=1)

    return seconds


def token_seconds(tokens: Floats) -> Floats:
    """Return the seconds of each request's prompt, and those of its answer."""
    seconds: Floats = tokens * np.array((PROMPT_TOKEN_S, OUTPUT_TOKEN_S))
    return seconds


_azure, _mooncake = _by_tokens(_azure_tokens), _by_tokens(_mooncake_tokens)


def _gentd26(path: Path, rng: np.random.Generator) -> Requests:
    """GenTD26: image requests of 23 days, folded into one day, with their own execution times."""
    times, work, _ = gentd26_by_model(path, rng)
    return _from_zero(times % _DAY_S, work)


def gentd26_by_model(
    path: Path, rng: np.random.Generator
) -> tuple[Floats, Floats, NDArray[np.str_]]:
    """GenTD26's requests in the trace's order: seconds since the first, of work, base model."""
    rows = [row for row in _rows(path) if row["exec_time_seconds"]]
    times = np.array([datetime.fromisoformat(row["gmt_create"]).timestamp() for row in rows])
    work = np.array([float(row["exec_time_seconds"]) for row in rows])
    models = np.array([row["checkpoint_model_version_id"] for row in rows])
    return _spread(times - times.min(), rng), work, models


def _plain(path: Path, rng: np.random.Generator) -> Requests:
    """Read arrival seconds, one a line, and draw lognormal service times.

    Their mean is 5 s, or up to 30 s if a rarely used service would otherwise fill fewer than 26
    places. Raises TraceError for fewer than two arrivals.
    """
    with opened(path) as text:
        times = np.array(
            [float(line.split(",", maxsplit=1)[0]) for line in text if _is_number(line)]
        )
    shape = rng.lognormal(-(_PLAIN_SIGMA**2) / 2, _PLAIN_SIGMA, times.size)
    if times.size < _FEWEST_REQUESTS:
        raise TraceError(
            f"{path} has fewer than {_FEWEST_REQUESTS} arrivals. Give a file whose first column is "
            "seconds, one request a line, or one of the formats in "
            "studies/autoscale/README.md."
        )
    arrivals, work = _from_zero(times, shape)
    mean_s = FULL_REPLICAS / busiest(arrivals, work)
    return arrivals, work * min(max(mean_s, _PLAIN_MEAN_S), _LONGEST_MEAN_S)


def _servegen(mean_s: float, first_s: int, span_s: int) -> Reader:
    def read(path: Path, rng: np.random.Generator) -> Requests:
        clients = servegen.clients(path, first_s, span_s)
        return servegen.requests(clients, span_s, mean_s, rng)

    return read


_HOUR_S = 3600
SERVEGEN_SPANS: dict[str, tuple[float, int, int]] = {
    "servegen-large": (12.0, 8 * _DAY_S, 12 * _HOUR_S),
    "servegen-small": (12.0, _DAY_S + 4 * _HOUR_S, 12 * _HOUR_S),
    "servegen-reason": (40.0, 0, _DAY_S),
}
"""Mean seconds of service, and beginning and length of what is replayed, in seconds."""
STORED: dict[str, tuple[str, Reader]] = {
    "azure": ("AzureLLMInferenceTrace_conv.csv.xz", _azure),
    "mooncake": ("mooncake_fast25_conversation_trace.jsonl.xz", _mooncake),
    "servegen-large": (
        "servegen_language-m-large-trace.tar.xz",
        _servegen(*SERVEGEN_SPANS["servegen-large"]),
    ),
    "servegen-small": (
        "servegen_language-m-small-trace.tar.xz",
        _servegen(*SERVEGEN_SPANS["servegen-small"]),
    ),
    "servegen-reason": (
        "servegen_reason-deepseek-r1-trace.tar.xz",
        _servegen(*SERVEGEN_SPANS["servegen-reason"]),
    ),
    "gentd26": ("alibaba_gentd26_lora_request_trace.csv.xz", _gentd26),
}


TOKENS: dict[str, tuple[str, Reader]] = {
    "azure": (STORED["azure"][0], _azure_tokens),
    "mooncake": (STORED["mooncake"][0], _mooncake_tokens),
}
"""Those that have tokens, of prompts and of answers, in place of seconds."""


def stored(name: str, traces: Path, seed: int) -> Workload:
    """The workload of one of the traces in ``STORED``."""
    file, reader = STORED[name]
    return _workload(name, traces / file, reader, traces, seed)


def of_bursts(name: str, traces: Path, seed: int) -> Workload:
    """The workload of one of the loads in ``bursts.LOADS``; a replica takes one request."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return _made(name, bursts.drawn(bursts.LOADS[name], rng), 1, traces, rng)


def with_tokens(
    name: str, traces: Path, seed: int, change: Callable[[Floats, Floats], Floats]
) -> tuple[Workload, Floats]:
    """The workload of a trace in ``TOKENS``, and the seconds of each request's prompt and answer.

    ``change`` gets arrivals and tokens, and returns the tokens to replay with.
    """
    file, read = TOKENS[name]
    seconds: list[Floats] = []

    def changed(path: Path, rng: np.random.Generator) -> Requests:
        arrivals, tokens = read(path, rng)
        seconds.append(token_seconds(change(arrivals, tokens)))
        return arrivals, seconds[0].sum(axis=1)

    return _workload(name, traces / file, changed, traces, seed), seconds[0]


def given(path: Path, traces: Path, seed: int) -> Workload:
    """The workload of any other trace; its name or its first line shows its format."""
    return _workload(path.name.split(".")[0], path, _reader_of(path), traces, seed)


def _reader_of(path: Path) -> Reader:
    if ".tar" in path.suffixes:
        return _servegen(12.0, 0, _DAY_S)
    with opened(path) as text:
        first = text.readline()
    if first.startswith("{"):
        return _mooncake
    if "ContextTokens" in first:
        return _azure
    if "gmt_create" in first:
        return _gentd26
    return _plain


def _workload(name: str, path: Path, reader: Reader, traces: Path, seed: int) -> Workload:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    arrivals, work = _within_a_day(*reader(path, rng), rng)
    return _made(name, (arrivals, work), fitting_concurrency(arrivals, work), traces, rng)


def _made(
    name: str, requests: Requests, concurrency: int, traces: Path, rng: np.random.Generator
) -> Workload:
    arrivals, work = requests
    duration_s = int(arrivals[-1]) + 1
    warm_s = warm_up_s(duration_s)
    return Workload(
        name=name,
        arrivals_s=arrivals,
        service_s=work,
        duration_s=duration_s,
        concurrency=concurrency,
        starts=draw_starts(loads_s(traces), rng),
        first_replicas=enough(arrivals, work, concurrency, warm_s),
        warm_s=warm_s,
    )


def loads_s(traces: Path) -> Floats:
    """Seconds that models took to load, as Alibaba measured."""
    return np.array([float(row["value"]) / 1000 for row in _rows(traces / _LOADS)])


def _within_a_day(arrivals: Floats, work: Floats, rng: np.random.Generator) -> Requests:
    """The first day, thinned to about ``_MOST_REQUESTS``, so that a replay takes seconds."""
    keep = (arrivals < _DAY_S) & (rng.random(arrivals.size) * arrivals.size < _MOST_REQUESTS)
    return arrivals[keep], work[keep]


def _spread(times: Floats, rng: np.random.Generator) -> Floats:
    """Spread times over the tick of the clock that recorded them."""
    tick_s = np.diff(np.unique(times)).min()
    return times + rng.uniform(0, tick_s, times.size)


def _from_zero(times: Floats, work: Floats) -> Requests:
    order = np.argsort(times, kind="stable")
    return times[order] - times[order[0]], work[order]


def _is_number(line: str) -> bool:
    try:
        float(line.split(",", maxsplit=1)[0])
    except ValueError:
        return False
    return True


def _rows(path: Path) -> list[dict[str, str]]:
    with opened(path) as text:
        return list(csv.DictReader(text))


def require(path: Path) -> None:
    """Raise TraceError unless there is such a file."""
    if not path.exists():
        raise TraceError(
            f"The trace {path} is not there. Say where the traces lie: --traces DIR or "
            "SLICEWISE_TRACES; studies/autoscale/README.md names their sources."
        )


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a trace as text, compressed or not.

    Raises:
        TraceError: there is no such file.
    """
    require(path)
    packed = path.suffix == ".xz"
    with lzma.open(path, "rt") if packed else path.open(encoding="utf-8") as text:
        yield text
