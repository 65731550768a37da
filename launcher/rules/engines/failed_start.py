"""Finds in a server's log why its start failed."""

import re
from collections.abc import Sequence

from slicewise.launcher.rules.engines.engine import Engine

_SHOWN, _LENGTH = 3, 130
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)(?::|$)")
"""The line of Python that says what was raised, such as ``torch.OutOfMemoryError: CUDA ...``."""
_OF_THE_END = re.compile(
    r"(?:KeyboardInterrupt|SystemExit|GeneratorExit|(?:\w+\.)*CancelledError|BrokenPipeError"
    r"|(?:\w+\.)*TimeoutExpired|Exception ignored in|.*resource_tracker|nanobind: leaked"
    r"|During handling of the above|The above exception was the direct cause"
    r"|terminate called without an active exception)"
)
"""What Python and its libraries say because a program ends, whatever it ends for."""


def cause(lines: Sequence[str], engine: Engine) -> str:
    """Return why a start failed, in the words of its log; "" if it says nothing.

    That is the last exception that is not of the end itself, with the lines that belong to it.
    Without one it is what was complained of last. What harms no start, and what only repeats a
    failure, counts if there is nothing else.
    """
    said = [
        engine.log_message(line) for line in lines if line and not engine.log_notice.match(line)
    ]
    telling = [
        line for line in said if not engine.log_harmless.match(line) and not _OF_THE_END.match(line)
    ]
    raised = next((line for line in reversed(telling) if _EXCEPTION.match(line)), None)
    if raised is not None:
        shown = [raised, *_belonging(raised, lines, engine)]
    else:
        shown = (telling or said)[-_SHOWN:]
    return " ".join(line.strip()[:_LENGTH] for line in shown)


def _belonging(raised: str, lines: Sequence[str], engine: Engine) -> Sequence[str]:
    """Return the indented lines right behind an exception: what pydantic says is in these."""
    messages = [engine.log_message(line) for line in lines]
    at = len(messages) - messages[::-1].index(raised)
    end = next(
        (i for i in range(at, len(messages)) if not messages[i].startswith(" ")), len(messages)
    )
    return messages[at : min(end, at + _SHOWN - 1)]
