"""Uses of API keys, and streams that they have open, in the texts of HAProxy's Runtime API.

HAProxy checks a key when a request comes. The configuration notes each stream of a key in the table
``streams``, by digest and by the number that HAProxy gives each request; ``show sess all`` shows
which session has that number. The map ``used`` has the Unix seconds of each key's last use.
"""

import re
from collections.abc import Collection, Iterator, Mapping

STREAMS = "streams"
USE_NOTED_S = 20
"""Seconds after which a further use of a key is noted."""
_LATELY_S = 120.0
SHOW_STREAMS = f"show table {STREAMS} data.conn_cur gt 0"
SHOW_SESSIONS = "show sess all"
_STREAM = re.compile(r"key=([0-9a-f]{64})/(\d+) ")
_SESSION = re.compile(r"^(0x[0-9a-f]+): \[[^\]]*\] id=(\d+) ", re.MULTILINE)


def without_key(shown: str, digests: Collection[str]) -> frozenset[int]:
    """Return the numbers of streams that none of these keys has let in; ``shown``:
    ``SHOW_STREAMS``.

    A configuration without that table has none.
    """
    return frozenset(
        int(number) for digest, number in _STREAM.findall(shown) if digest not in digests
    )


def end_commands(shown: str, numbers: Collection[int]) -> Iterator[str]:
    """Yield commands that end the requests of these numbers only; ``shown``: ``SHOW_SESSIONS``."""
    for session, number in _SESSION.findall(shown):
        if int(number) in numbers:
            yield f"shutdown session {session}"


def key_ages_s(used: Mapping[str, str], streams: str, now_s: float) -> Mapping[str, float]:
    """Return the seconds since each key's last use, by digest, without those long ago.

    ``used`` has the Unix seconds of uses, by digest; ``streams``: ``SHOW_STREAMS``. A key is in use
    as long as one of its streams is open.
    """
    ages = {digest: max(0.0, now_s - float(at_s)) for digest, at_s in used.items()}
    lately = {digest: age_s for digest, age_s in ages.items() if age_s < _LATELY_S}
    return lately | {digest: 0.0 for digest, _ in _STREAM.findall(streams)}
