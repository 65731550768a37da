"""Writes log lines of both programs and of commands: one line per event, as logfmt or JSON.

Events go through Python's loggers, as warnings of libraries do. The processors of structlog make
lines of both, with the ids that are bound where the code runs. structlog is imported for the first
line only: it takes 0.1 s, and most commands log nothing.
"""

import logging
import math
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from json import JSONEncoder
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Literal

from slicewise.cluster.runtime.wall_clock import wall_s

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LogFormat = Literal["logfmt", "json"]

TEXT_CHARACTERS = 2000
"""Characters of a value that are logged, of a traceback four times as many. A longer one loses its
middle."""
LINE_BYTES = 40_000
"""Most bytes of a line: journald would make two entries of one above 48 KiB, and the second could
be any text."""
_SHORT_CHARACTERS = 100
"""Characters of each value in a line that would have more bytes."""
_INT_BITS = 64
"""An int of more bits is logged as text, in hexadecimal."""
_TRACEBACK = "exception"
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/@+-]+").fullmatch
_Render = Callable[[Mapping[str, str], Mapping[str, object]], str]
_Fields = MutableMapping[str, Any]


class LoggedEvent:
    """An event and its fields, as the message of a record of Python's loggers.

    Where no program has configured its log, as in most commands, it shows as ``event key=value``.
    """

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join((self.name, *_pairs(_bounded(self.fields, TEXT_CHARACTERS))))


def configure_logging(program: str, form: LogFormat, level: str) -> None:
    """Log to stderr, from which systemd's journal reads, in the name of ``program``.

    Libraries log warnings and errors only.
    """
    # No line tells them, and they would be looked up for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(program, form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("slicewise").setLevel(level)


def emit(
    logger: logging.Logger,
    level: int,
    event: str,
    fields: Mapping[str, object],
    error: BaseException | None = None,
) -> None:
    """Log an event; with the traceback of ``error``, if given."""
    if logger.isEnabledFor(level):
        event_logged = LoggedEvent(event, fields)
        raised = None if error is None else (type(error), error, error.__traceback__)
        # Not by logger.log, which looks up the calling line: an event's name says where it is.
        logger.handle(logger.makeRecord(logger.name, level, "", 0, event_logged, (), raised))


def bound(**ids: object) -> AbstractContextManager[None]:
    """Give these ids to every event inside, in tasks and threads of asyncio that begin there, too.

    An event that has a field of that name keeps its own.
    """
    from structlog.contextvars import bound_contextvars  # noqa: PLC0415 -- as this module says

    return bound_contextvars(**ids)


class LineFormatter(logging.Formatter):
    """Makes one line of a record, whatever its values hold.

    A record of a library is the event ``library`` with its logger and message.
    """

    def __init__(self, program: str, form: LogFormat) -> None:
        super().__init__()
        self._program = program
        self._form = form
        self._lines: FilteringBoundLogger | None = None

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        if self._lines is None:
            self._lines = _lines(self._program, self._form)
        message: object = record.msg
        if isinstance(message, LoggedEvent):
            event, fields = message.name, message.fields
        else:
            event, fields = "library", {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields = {**fields, "exc_info": record.exc_info}
        # A library may have levels of its own between those that structlog knows by name.
        level = max(logging.DEBUG, min(record.levelno // 10 * 10, logging.CRITICAL))
        line: str = self._lines.log(level, event, **fields)
        return line


def _lines(program: str, form: LogFormat) -> "FilteringBoundLogger":
    """Return a logger of structlog that returns the line of an event."""
    import structlog  # noqa: PLC0415 -- as this module says

    render = _logfmt if form == "logfmt" else _json()

    def rendered(_: object, level: str, fields: _Fields) -> str:
        head = {
            "time": _Clock.text(),
            "level": level,
            "program": program,
            "event": fields.pop("event"),
        }
        line = render(head, _bounded(fields, TEXT_CHARACTERS))
        if len(line) > LINE_BYTES:
            line = render(head, _bounded(fields, _SHORT_CHARACTERS))
        return line

    made: FilteringBoundLogger = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
    ).bind()
    return made


class _Clock:
    """The time as RFC 3339 in UTC; its seconds are made a text once."""

    _said = (0, "")

    @classmethod
    def text(cls) -> str:
        """Return the time to the millisecond."""
        now_ms = int(wall_s() * 1000)
        at_s, text = cls._said
        if now_ms // 1000 != at_s:
            at_s = now_ms // 1000
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
            cls._said = at_s, text
        return f"{text}.{now_ms % 1000:03d}Z"


def _logfmt(head: Mapping[str, str], fields: Mapping[str, object]) -> str:
    return " ".join([*map("=".join, head.items()), *_pairs(fields)])


def _json() -> _Render:
    from structlog.processors import JSONRenderer  # noqa: PLC0415 -- as this module says

    # An encoder that is made once: json.dumps with an option makes one for each line.
    encode = JSONEncoder().encode
    renderer = JSONRenderer(lambda fields, **_: encode(fields))

    def render(head: Mapping[str, str], fields: Mapping[str, object]) -> str:
        # The head is first, and no field replaces it.
        return str(renderer(None, "", {**head, **fields, **head}))

    return render


def _bounded(fields: Mapping[str, object], most: int) -> Mapping[str, object]:
    return {
        key: value
        if type(value) is str and len(value) <= most
        else _value(value, 4 * most if key == _TRACEBACK else most)
        for key, value in fields.items()
    }


def _value(value: object, most: int) -> object:
    """Return numbers, booleans and None as they are, all else as text of so many characters.

    Sets are their members in order, ``-`` if empty.
    """
    if value is None or type(value) is bool:
        return value
    if isinstance(value, int):
        # Python makes no decimal text of an int of thousands of digits: it raises ValueError.
        if value.bit_length() < _INT_BITS:
            return value
        value = hex(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, frozenset | set):
        text = ",".join(str(item) for item in sorted(value)) or "-"
    else:
        text = str(value)
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}...({len(text) - 2 * half} characters)...{text[-half:]}"


def _pairs(fields: Mapping[str, object]) -> list[str]:
    """Return each field as logfmt: a value with blanks or control characters is quoted as JSON."""
    return [f"{key}={_quoted(value)}" for key, value in fields.items()]


def _quoted(value: object) -> str:
    text = value if type(value) is str else str(value)
    return text if _PLAIN(text) else encode_basestring_ascii(text)
