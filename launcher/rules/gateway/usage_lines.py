"""What HAProxy writes of each request that used tokens: one line, and sums of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

USAGE = "usage"
"""First word of such a line in HAProxy's ring."""
MOST_LINE_BYTES = 800
"""Bytes of a line: names of 100 to 130 bytes each, and numbers."""
MOST_TOKENS = 1_000_000_000
"""The largest count of one request: a replica that says more is not believed."""
_THREADS = 64
"""HAProxy's threads at most: each numbers its lines in steps of as many."""
_MOST_BOOTS = 16
"""Processes of HAProxy that are remembered: those of a few reloads live at the same time."""
_NAME = r"[!-~]{1,130}"
_BOOT = r"[A-Za-z0-9._-]{1,40}-[0-9]{1,10}-[0-9]{1,12}"
_LINE = re.compile(
    rf"{USAGE} (?P<boot>{_BOOT}) (?P<number>[0-9]{{1,16}})"
    rf" (?P<payer>{_NAME}) (?P<person>{_NAME}) (?P<key_id>{_NAME}) (?P<service>{_NAME})"
    r" (?P<replica>[0-9a-f]{64}|-) (?P<start_ms>[0-9]{1,16}) (?P<end_ms>[0-9]{1,16})"
    r" (?P<first_ms>[0-9]{1,16}|-) (?P<prompt>[0-9]{1,10}) (?P<cached>[0-9]{1,10})"
    r" (?P<output>[0-9]{1,10}) (?P<outcome>whole|cut|failed) (?P<counted_by>usage|chunks)"
)


@dataclass(frozen=True)
class UsageLine:
    """What one request has used.

    Attributes:
        boot: HAProxy's process, as no other one is called.
        number: unique in the process.
        payer, person, key_id: whose request it was; "-" where there is none.
        service: OWNER/NAME.
        replica: SHA-256 of the certificate of the run that answered, in lower-case hexadecimal; ""
            if none did.
        start_ms, end_ms, first_ms: Unix milliseconds at which it came, ended, and its answer began;
            None if no part of the answer came.
        prompt_tokens, cached_tokens, output_tokens: cached ones are a part of the prompt.
        outcome: whether the client got the whole answer, a part of it, or an error.
        is_exact: whether the engine has said the counts. Else ``output_tokens`` are the chunks that
            were sent on, and what the prompt had is not known.
    """

    boot: str
    number: int
    payer: str
    person: str
    key_id: str
    service: str
    replica: str
    start_ms: int
    end_ms: int
    first_ms: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: Literal["whole", "cut", "failed"]
    is_exact: bool

    @property
    def thread(self) -> int:
        """HAProxy's thread that has written it."""
        return self.number % _THREADS

    @property
    def place(self) -> int:
        """How many lines the thread had written before."""
        return self.number // _THREADS


def parse_usage_line(text: str) -> UsageLine | None:
    """Read a line of the ring; None if it is another one, or can't be read."""
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    words = match.groupdict()
    first, outcome = words["first_ms"], words["outcome"]
    return UsageLine(
        boot=words["boot"],
        number=int(words["number"]),
        payer=words["payer"],
        person=words["person"],
        key_id=words["key_id"],
        service=words["service"],
        replica=words["replica"].strip("-"),
        start_ms=int(words["start_ms"]),
        end_ms=int(words["end_ms"]),
        first_ms=None if first == "-" else int(first),
        prompt_tokens=min(int(words["prompt"]), MOST_TOKENS),
        cached_tokens=min(int(words["cached"]), MOST_TOKENS),
        output_tokens=min(int(words["output"]), MOST_TOKENS),
        outcome="whole" if outcome == "whole" else "cut" if outcome == "cut" else "failed",
        is_exact=words["counted_by"] == "usage",
    )


@dataclass(frozen=True)
class TokenSums:
    """What requests have used together; ``cached_tokens`` are a part of ``prompt_tokens``."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def plus(self, line: UsageLine) -> "TokenSums":
        """Return the sums with one more request."""
        return TokenSums(
            self.requests + 1,
            self.prompt_tokens + line.prompt_tokens,
            self.cached_tokens + line.cached_tokens,
            self.output_tokens + line.output_tokens,
        )


UsageByAsker = Mapping[tuple[str, str, str], TokenSums]
"""Sums by ``OWNER/NAME``, payer and person."""


def with_usage(sums: UsageByAsker, lines: Iterable[UsageLine]) -> UsageByAsker:
    """Return the sums with these requests."""
    added = dict(sums)
    for line in lines:
        key = (line.service, line.payer, line.person)
        added[key] = added.get(key, TokenSums()).plus(line)
    return added


@dataclass(frozen=True)
class HeardLines:
    """Which lines of HAProxy's processes were heard.

    Attributes:
        next_places: the place after the last line that was heard, by process and thread.
        missed: lines that were never heard: HAProxy's ring had no room for them.
    """

    next_places: Mapping[tuple[str, int], int]
    missed: int = 0

    def hears(self, line: UsageLine) -> "HeardLines | None":
        """Return what was heard with this line; None if it was heard before.

        The ring keeps what was read, and a launcher that starts reads all of it: nobody knows
        whether the one before has read what is no longer there.
        """
        key = (line.boot, line.thread)
        expected = self.next_places.get(key)
        if expected is not None and line.place < expected:
            return None
        missed = line.place - expected if expected is not None else 0
        places = {**self.next_places, key: line.place + 1}
        boots = dict.fromkeys(boot for boot, _ in places)
        if len(boots) > _MOST_BOOTS:
            # The oldest by the time at which this launcher heard of them first.
            first = next(iter(boots))
            places = {at: place for at, place in places.items() if at[0] != first}
        return HeardLines(places, self.missed + missed)
