"""The base of every message of the wire (``messages.py`` and its siblings), and its build time.

A request declares where the daemon is asked for it, who may ask, and what the answer is. Routes,
client and the reference of the wire all follow from that.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args, get_origin
from urllib.parse import quote, urlencode

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import from_json

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

VERSION_PATH = "/v1/"

NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
"""Pattern of a request's text without control characters: PostgreSQL refuses NUL in any text."""

TenantText = Annotated[str, Field(max_length=64, pattern=NO_CONTROLS), AfterValidator(account_name)]
"""A tenant as a user has typed it, in any case."""

ACTING_PATH = f"{VERSION_PATH}as/"
"""What comes before the user's name where the web server asks for a user: ``/v1/as/alice/why``."""

Asker = Literal["everybody", "launcher", "web", "operators"]
"""Who may ask. ``everybody``: each user gets what concerns the user; ``launcher`` and ``web``: the
launcher or the web server, and operators, which are root and SlurmUser.
"""


Sent = TypeVar("Sent")
Cursor = Annotated[
    Sent, BeforeValidator(lambda place: from_json(place) if isinstance(place, str) else place)
]
"""Where a page ends, as ``Request.sent`` writes it: of a query's text the JSON."""

_MOST_TOLD = 60
"""Characters of a refused word that its refusal repeats."""


class Message(BaseModel):  # noqa: PLW1641 -- pydantic adds __hash__
    """Base of all messages: frozen; an unknown key is an error, save for who reads an answer."""

    # Each is built at its first use: a command uses two of some fifty.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __eq__(self, other: object) -> bool:
        # The launcher compares some 100,000 in a turn. Pydantic's own takes twice as long,
        # for what no message has: private attributes, extra keys, generic kinds.
        return type(self) is type(other) and self.__dict__ == other.__dict__


class Answer(Message):
    """Base of all answers.

    Attributes:
        leaves_out_none: whether fields without a value are left out; readers then take defaults.
    """

    leaves_out_none: ClassVar[bool] = True

    v: Literal[1] = 1


class WholeAnswer(Answer):
    """An answer with values of the rules, whose fields are all needed."""

    leaves_out_none = False


class DoneAnswer(Answer):
    """The request was carried out."""

    ok: Literal[True] = True


class FailureAnswer(Answer):
    """The request was refused or failed."""

    ok: Literal[False] = False
    code: str
    message: str
    hint: str = ""


Answered = TypeVar("Answered", bound=Message)


def failure_in(answer: bytes) -> FailureAnswer | None:
    """The failure that an answer says; None if it says none. Unknown keys are ignored.

    Only ``ok`` tells a failure: the answer to a check has all its other keys, too.
    """
    try:
        failure_answer = FailureAnswer.model_validate_json(answer, extra="ignore")
    except ValidationError:
        return None
    return failure_answer if "ok" in failure_answer.model_fields_set else None


def read_answer(kind: type[Answered], answer: bytes) -> Answered:
    """Read what a daemon answers, which may be newer: keys that are not known are ignored.

    Raises ValidationError for what is no such answer, as a failure is.
    """
    try:
        return kind.model_validate_json(answer)
    except ValidationError:
        # Without its unknown keys a failure would be an answer of which all can be left out.
        if failure_in(answer) is not None:
            raise
        return kind.model_validate_json(answer, extra="ignore")


class Request(Message):
    """Base of all requests; one declares itself by ``get`` if it changes nothing, else by ``post``.

    Attributes:
        method, path: of HTTP.
        changes: whether the daemon may have changed something once it has read the request.
        asker: who may ask at all; handlers see to the rest.
        on_page: whether the web server may ask it for a user although it changes something.
        for_guests: whether it may be asked for a guest, who has no account of Slurm's.
    """

    method: ClassVar[Literal["GET", "POST"]]
    changes: ClassVar[bool]
    path: ClassVar[str]
    asker: ClassVar[Asker]
    on_page: ClassVar[bool]
    for_guests: ClassVar[bool]

    def __init_subclass__(
        cls,
        *,
        get: str = "",
        post: str = "",
        changes: bool = True,
        asker: Asker = "everybody",
        on_page: bool = False,
        for_guests: bool = False,
        **options: Any,
    ) -> None:
        """Keep what the request declares."""
        super().__init_subclass__(**options)
        cls.method, cls.path = ("GET" if get else "POST"), VERSION_PATH + (get or post)
        cls.changes = bool(post) and changes
        cls.asker = asker
        cls.on_page, cls.for_guests = on_page, for_guests

    @classmethod
    def of(cls, **fields: object) -> Self:
        """Build a request; InvalidInputError (SW-VALUE) for words that no request can hold."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])).replace("_", " ")
            raise InvalidInputError(
                Code.VALUE,
                f"{field}: {_shortened(problem['input'])} is not allowed: {problem['msg']}.",
            ) from None

    def sent(self) -> tuple[str, bytes]:
        """The target and the body by which HTTP carries the request."""
        if self.method == "POST":
            return self.path, self.model_dump_json(exclude_none=True).encode()
        fields = self.model_dump(mode="json", exclude_defaults=True)
        words = {
            name: field if isinstance(field, str) else json.dumps(field)
            for name, field in fields.items()
        }
        return self.path + (f"?{urlencode(words)}" if words else ""), b""


def _shortened(refused: object) -> str:
    """A refused word for its refusal: whoever gave a whole file needs no second one."""
    if isinstance(refused, str) and len(refused) > _MOST_TOLD:
        return f"{refused[:_MOST_TOLD]!r}... ({len(refused):,} characters)"
    return repr(refused)


class Asks(Generic[Answered]):
    """Ties a request to its answer: ``class WhyRequest(Request, Asks[WhyAnswer], get="why")``."""


def answer_of(request: type[object]) -> Any:
    """The answer that a request declares."""
    bases: tuple[Any, ...] = getattr(request, "__orig_bases__", ())
    (asks,) = (get_args(base)[0] for base in bases if get_origin(base) is Asks)
    return asks


def requests() -> Iterator[type[Request]]:
    """Every request that is declared, in the order of its declaration."""
    yield from Request.__subclasses__()


def acting_target(user: str, target: str) -> str:
    """The target of the same request where the web server asks it for a user."""
    return f"{ACTING_PATH}{quote(user, safe='')}/{target.removeprefix(VERSION_PATH)}"


def build(*messages: type[BaseModel]) -> None:
    """Build these and their subclasses now, for a program that should not delay its first answer.

    To be called while the program has one thread.
    """
    for message in messages:
        message.model_rebuild()
        build(*message.__subclasses__())
