"""Fair queues in the texts of HAProxy: the table of their counters, the map of what requests count.

HAProxy counts moments in hundredths of a millisecond, modulo 2^30: three hours.
"""

import re
from collections.abc import Mapping
from typing import Literal

from slicewise.launcher.rules.gateway.fair_queue import FairQueue, Position, tokens_of

FAIR = "fair"
"""Name of the table."""
SHOW_FAIR = f"show table {FAIR}"
FAR_MS, _MOST_BACK_MS = 300_000, 200_000
"""How long after and before the clock a request's moment may be."""
_TOLD_APART_MS = 524_000
_SPARE_MS = 4_000
PACE_UNIT = 1e-6
"""Of a pace in the map, in milliseconds a token. A token there is a tenth of one."""
DIVISOR = 100_000
"""What a product of both is divided by for hundredths of a millisecond."""
_MODULO = 1 << 30
_PER_MS = 100
_MOST_TOKENS, _MOST_PACE = 100_000_000, 1_000_000_000
Among = Literal["tenants", "persons"]
_ENTRY = re.compile(r"^0x[0-9a-f]+: key=([^/\s]+/[^/\s]+)(/\S*)? .*?\bgpt0=(\d+)", re.MULTILINE)


def back_ms(hold_s: int) -> int:
    """How long before the clock a moment may be if a request may wait for so many seconds."""
    return min(_MOST_BACK_MS, _TOLD_APART_MS - _SPARE_MS - 1000 * hold_s)


def positions_of(shown: str, now_ms: float) -> Mapping[str, Position]:
    """Read the answer to ``SHOW_FAIR``: where each service's queue stands.

    A service of which no request has got a place yet stands now. A configuration without that table
    has none.
    """
    turns: dict[str, float] = {}
    latest: dict[str, float] = {}
    for service, subject, gpt in _ENTRY.findall(shown):
        moment_ms = _moment_ms(int(gpt), now_ms) if int(gpt) else now_ms
        if subject:
            latest[service] = max(latest.get(service, moment_ms), moment_ms)
        else:
            turns[service] = moment_ms
    return {
        service: Position(turn_ms, max(turn_ms, latest.get(service, turn_ms)))
        for service, turn_ms in turns.items()
    }


def _moment_ms(gpt: int, now_ms: float) -> float:
    from_now = (gpt - round(now_ms * _PER_MS) + _MODULO // 2) % _MODULO - _MODULO // 2
    return now_ms + from_now / _PER_MS


def entries_of(
    service: str, queue: FairQueue, weights: Mapping[str, float], among: Among
) -> Mapping[str, str]:
    """Return a service's entries of the map.

    The service's own says ``TOKENS:PACE:LATER_PACE:FROM:AMONG``.
    """
    others, tokens_by_name = tokens_of(queue, weights)
    pace = queue.pace
    from_moment = round(pace.from_ms * _PER_MS) % _MODULO
    order = (_tokens(others), _pace(pace.before), _pace(pace.then), str(from_moment), among)
    entries = {f"{service}/{name}": _tokens(tokens) for name, tokens in tokens_by_name.items()}
    return {service: ":".join(order), **entries}


def _tokens(tokens: float) -> str:
    return str(max(1, min(_MOST_TOKENS, _rounded(10 * tokens))))


def _pace(pace: float) -> str:
    return str(max(1, min(_MOST_PACE, round(pace / PACE_UNIT))))


def _rounded(number: float) -> int:
    """Round to three digits, so that HAProxy is not told each little change of a mean."""
    return round(float(f"{number:.3g}"))
