"""What a quota says: each attribute is declared here once, and typed in ``Quota``.

Columns of the ledger, keys of files and requests, options of ``tenant-quota set``, bounds and words
follow from the declaration. Only the migration that adds its column is written by hand.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import (
    Millislices,
    millislices_from_text,
    slices_text,
    slices_words,
)
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.quota.amounts import (
    UNLIMITED,
    count_from_text,
    limit_from_text,
    limit_text,
    limits_from_texts,
    models_text,
    type_nominals_from_texts,
    types_text,
)
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    MAX_TYPE_LIMIT,
    MAX_WEIGHT,
    Quota,
)

Reader = Callable[[Any, str, Quota, Settings], Mapping[str, object]]


@dataclass(frozen=True)
class Attribute:
    """One value of a quota.

    Attributes:
        field: of ``Quota``, ``TenantUpdate`` and the table ``quota_changes``.
        noun: what sentences call it.
        text: writes its value.
        number_text: writes a bound: of the value, or of each number of a table.
        least, most: those bounds.
    """

    field: str
    noun: str
    text: Callable[[Any], str]
    number_text: Callable[[Any], str]
    most: int
    least: int = 0


@dataclass(frozen=True)
class QuotaSetting:
    """What operators set by one key of a quota's table, or by an option of ``tenant-quota set``.

    Attributes:
        key: as files and requests have it.
        is_table: it has numbers by name; as an option it is given once for each.
        read: reads a text, or texts ``NAME=NUMBER`` of a table, of what the errors shall call it,
            beside the quota of before; returns values by field. Raises InvalidInputError
            (SW-VALUE).
        example, note: a value as files have it, and what is said beside it.
    """

    key: str
    attributes: tuple[Attribute, ...]
    read: Reader
    metavar: str
    help: str
    example: str
    note: str = ""
    is_table: bool = False

    @property
    def option(self) -> str:
        """``--borrowing-limit``; a table's names one of its numbers."""
        return f"--{(self.key.removesuffix('s') if self.is_table else self.key).replace('_', '-')}"


def _number(
    attribute: Attribute, read: Callable[[str, str], int], metavar: str, **more: Any
) -> QuotaSetting:
    def values(text: str, label: str, _: Quota, __: Settings) -> Mapping[str, object]:
        return {attribute.field: read(text, label)}

    key = attribute.noun.replace(" ", "_")
    return QuotaSetting(key, (attribute,), values, metavar, **more)


def _slices(noun: str, text: Callable[[int], str]) -> Attribute:
    field = f"{noun.replace(' ', '_')}_millislices"
    return Attribute(field, noun, text, text, MAX_NOMINAL_MILLISLICES)


def _or_unlimited(text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda limits: text(limits) or UNLIMITED


def _limits(texts: Any, _: str, quota: Quota, settings: Settings) -> Mapping[str, object]:
    found = limits_from_texts(texts, quota, settings.costs, settings.gpus)
    return {"type_limits": found.types, "model_limits": found.models}


def _type_nominals(texts: Any, _: str, quota: Quota, settings: Settings) -> Mapping[str, object]:
    return {"type_nominals": type_nominals_from_texts(texts, quota, settings.costs)}


_TYPE_LIMITS = Attribute("type_limits", "types", _or_unlimited(types_text), str, MAX_TYPE_LIMIT)
_MODEL_LIMITS = Attribute(
    "model_limits", "models", _or_unlimited(models_text), slices_text, MAX_NOMINAL_MILLISLICES
)
_TYPE_NOMINALS = Attribute(
    "type_nominals",
    "guaranteed by type",
    lambda types: types_text(types) or "any",
    str,
    MAX_TYPE_LIMIT,
)

SETTINGS = (
    _number(
        _slices("nominal", slices_words),
        millislices_from_text,
        "SLICES",
        help="Slices at one time, such as 6 or 3.5; a GPU of weight 1 has 7.",
        example="12",
        note="or 3.5",
    ),
    _number(
        _slices("borrowing limit", limit_text),
        limit_from_text,
        "SLICES",
        help="Most idle slices of others that it may borrow, or unlimited.",
        example='"unlimited"',
        note="or slices",
    ),
    _number(
        _slices("lending limit", limit_text),
        limit_from_text,
        "SLICES",
        help="Most of its idle slices that others may borrow, or unlimited.",
        example="3",
    ),
    _number(
        Attribute("weight", "weight", str, str, MAX_WEIGHT, least=1),
        count_from_text,
        "NUMBER",
        help="Its share of idle slices, relative to other borrowers: 2 gets twice that of 1.",
        example="2",
    ),
    QuotaSetting(
        "limits",
        (_TYPE_LIMITS, _MODEL_LIMITS),
        _limits,
        "NAME=LIMIT",
        "TYPE=COUNT, MODEL=SLICES or NAME=none; may be given several times.",
        '{ "3g.40gb" = 2 }',
        'TYPE = COUNT, MODEL = SLICES, or NAME = "none"',
        is_table=True,
    ),
    QuotaSetting(
        "type_nominals",
        (_TYPE_NOMINALS,),
        _type_nominals,
        "TYPE=COUNT",
        "Instances of a type that the nominal guarantees at most; more run on loan. TYPE=none: as"
        " many as its slices pay for. May be given several times.",
        '{ "3g.40gb" = 1 }',
        'most that the nominal guarantees: TYPE = COUNT, or "none"',
        is_table=True,
    ),
)
"""In the order in which people read them."""

ATTRIBUTES = tuple(attribute for setting in SETTINGS for attribute in setting.attributes)


def quota_values(
    words: Mapping[str, object], quota: Quota, settings: Settings
) -> Mapping[str, Any]:
    """Return values by field of what a request sets, words by ``QuotaSetting.key``.

    What is set of a table includes what ``quota`` has of it. Raises InvalidInputError (SW-VALUE).
    """
    by_key = {setting.key: setting for setting in SETTINGS}
    if unknown := words.keys() - by_key.keys():
        raise InvalidInputError(
            Code.VALUE,
            f"A quota has no {', '.join(sorted(unknown))}.",
            f"It has {', '.join(by_key)}.",
        )
    values: dict[str, Any] = {}
    for key, given in words.items():
        if isinstance(given, str) == by_key[key].is_table:
            raise InvalidInputError(Code.VALUE, f"{by_key[key].option} can't be {given!r}.")
        values |= by_key[key].read(given, by_key[key].option, quota, settings)
    return values


def require_readable(words: Mapping[str, Any], settings: Settings) -> None:
    """Raise InvalidInputError (SW-VALUE) for what ``quota_values`` would refuse beside any quota.

    A name that is not in slicewise.toml may be that of a limit to be lifted.
    """
    names = {*settings.costs, *settings.gpus}

    def is_judged(text: str) -> bool:
        name, equals, _ = text.partition("=")
        return name in names or not equals or not text.isprintable()

    judged = {
        key: given if isinstance(given, str) else tuple(filter(is_judged, given))
        for key, given in words.items()
    }
    quota_values(judged, Quota(Millislices(0)), settings)


def numbers(quota: Quota) -> Iterator[tuple[Attribute, str | None, int]]:
    """Yield each number of a quota with its name in a table; None for one in no table."""
    for attribute in ATTRIBUTES:
        value = getattr(quota, attribute.field)
        by_name = value if isinstance(value, Mapping) else {None: value}
        for name, number in by_name.items():
            yield attribute, name, number
