"""Reads amounts as operators write them, exactly, without rounding."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import SLICES, Meter
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import (
    Millislices,
    millislices_from_text,
    slices_text,
    slices_words,
)
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    MAX_TYPE_LIMIT,
    Budget,
    Quota,
)

UNLIMITED = "unlimited"
ALL = "all"
NONE = "none"

_COUNT = re.compile(r"[0-9]{1,9}")


def limit_from_text(text: str, key: str) -> Millislices:
    """Read slices, or ``unlimited``. Raises InvalidInputError (SW-VALUE)."""
    return MAX_NOMINAL_MILLISLICES if text == UNLIMITED else millislices_from_text(text, key)


def limit_text(amount_millislices: int) -> str:
    """Write a limit as people read it: slices, or ``unlimited``."""
    unlimited = amount_millislices == MAX_NOMINAL_MILLISLICES
    return UNLIMITED if unlimited else slices_text(amount_millislices)


def count_from_text(text: str, key: str) -> int:
    """Read a whole number. Raises InvalidInputError (SW-VALUE)."""
    if not _COUNT.fullmatch(text):
        raise InvalidInputError(
            Code.VALUE, f"{key}: {text!r} is not a whole number.", "Write it in digits, such as 2."
        )
    return int(text)


def types_text(limits: Mapping[str, int]) -> str:
    """``2 × 3g.40gb``."""
    return ", ".join(f"{count} × {name}" for name, count in sorted(limits.items()))


def models_text(limits: Mapping[str, int]) -> str:
    """``7 slices on H200-141GB``."""
    return ", ".join(f"{slices_words(n)} on {name}" for name, n in sorted(limits.items()))


def budget_amount(text: str, key: str, unlimited: str = "", meter: Meter = SLICES) -> int:
    """Read an amount in a meter's words, such as ``1000`` or ``0.5`` slice-hours.

    The word that ``unlimited`` gives, if it is not "", stands for the largest budget. Raises
    InvalidInputError, naming ``key``: SW-VALUE, also below zero.
    """
    if unlimited and text == unlimited:
        return MAX_BUDGET_MILLISLICE_S
    if text.startswith("-"):
        raise InvalidInputError(
            Code.VALUE, f"{key}: {text!r} is below zero.", "Only budget adjust takes a sign."
        )
    return meter.amount(text, key)


def period_from_text(text: str) -> Period:
    """Read the period of a budget. Raises InvalidInputError (SW-VALUE)."""
    try:
        return Period(text)
    except ValueError:
        raise InvalidInputError(
            Code.VALUE,
            f"--period: there is no period {text!r}.",
            f"Choose one of: {', '.join(Period)}.",
        ) from None


@dataclass(frozen=True)
class BudgetWords:
    """A budget's values as the operator wrote them; None leaves a value as it is."""

    period: str | None = None
    amount: str | None = None
    carry_over: str | None = None
    overdraft: str | None = None


def budget_from_words(
    tenant: str, before: Budget | None, words: BudgetWords, meter: Meter = SLICES
) -> Budget:
    """Return the budget after the operator's changes; ``before`` is None if there was none.

    Raises InvalidInputError: SW-BUDGET-NONE, SW-VALUE.
    """
    if before is None and (words.period is None or words.amount is None):
        raise InvalidInputError(
            Code.BUDGET_NONE,
            f"Tenant {tenant!r} has no budget of {meter.unit} yet, so there is nothing to leave as"
            " it is.",
            f"Give both: --period {'|'.join(Period)} --amount AMOUNT, in {meter.unit}.",
        )
    given = {
        "period": _read(words.period, period_from_text),
        "amount": _read(words.amount, budget_amount, "--amount", "", meter),
        "carry_over": _read(words.carry_over, budget_amount, "--carry-over", ALL, meter),
        "overdraft": _read(words.overdraft, budget_amount, "--overdraft", UNLIMITED, meter),
    }
    kept = asdict(before) if before else {"meter": meter.name}
    return Budget(**kept | {name: value for name, value in given.items() if value is not None})


def _read(text: str | None, reader: Callable[..., object], *options: object) -> object:
    return None if text is None else reader(text, *options)


@dataclass(frozen=True)
class TypeLimits:
    """A quota's limits on GRES types (instances) and on GPU models (millislices)."""

    types: Mapping[str, int] = field(hash=False)
    models: Mapping[str, Millislices] = field(hash=False)


def limits_from_texts(
    texts: Iterable[str], quota: Quota, types: Collection[str], models: Collection[str]
) -> TypeLimits:
    """Return the quota's limits after each ``TYPE=COUNT``, ``MODEL=SLICES`` or ``NAME=none``.

    ``types`` and ``models`` are those of slicewise.toml. A limit on a name that is no longer there
    can still be lifted. Raises InvalidInputError (SW-VALUE).
    """
    of_types, of_models = dict(quota.type_limits), dict(quota.model_limits)
    for text in _each_once("--limit", texts):
        name, _, amount = text.partition("=")
        if amount == NONE and name in {*types, *models, *of_types, *of_models}:
            of_types.pop(name, None)
            of_models.pop(name, None)
        elif name in models:
            of_models[name] = millislices_from_text(amount, f"--limit {name}")
        elif name in types and _COUNT.fullmatch(amount):
            of_types[name] = int(amount)
        else:
            forms = "TYPE=COUNT, MODEL=SLICES or NAME=none"
            _refuse_pair("--limit", text, (*types, *models), "GPU type or model", forms)
    return TypeLimits(of_types, of_models)


def type_nominals_from_texts(
    texts: Iterable[str], quota: Quota, types: Collection[str]
) -> Mapping[str, int]:
    """Return the quota's guarantees by type after each ``TYPE=COUNT`` or ``TYPE=none``.

    ``types`` are those of slicewise.toml. One of a type that is no longer there can still be taken
    away. Raises InvalidInputError (SW-VALUE).
    """
    nominals = dict(quota.type_nominals)
    for text in _each_once("--type-nominal", texts):
        name, _, amount = text.partition("=")
        if amount == NONE and name in {*types, *nominals}:
            nominals.pop(name, None)
        elif name in types and _COUNT.fullmatch(amount):
            nominals[name] = int(amount)
        else:
            _refuse_pair("--type-nominal", text, types, "GPU type", "TYPE=COUNT or TYPE=none")
    return nominals


def _each_once(option: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield the pairs of names and amounts. A name that comes again is refused: which one holds?"""
    seen: dict[str, str] = {}
    for text in texts:
        name = text.partition("=")[0]
        if name in seen:
            raise InvalidInputError(
                Code.VALUE,
                f"{option} names {name!r} twice: {seen[name]!r} and {text!r}.",
                "Name each type or model once.",
            )
        seen[name] = text
        yield text


def _refuse_pair(option: str, text: str, valid: Iterable[str], kind: str, forms: str) -> NoReturn:
    names = sorted(valid)
    name, _, amount = text.partition("=")
    if name in names:
        why = f"{amount!r} is not a count" if amount else "it has no =COUNT"
    else:
        why = f"no {kind} is called {name!r}"
    raise InvalidInputError(
        Code.VALUE,
        f"{option} {text!r} can't be read: {why}.",
        f"Write {forms}; COUNT: 0 to {MAX_TYPE_LIMIT}; names: {', '.join(names)}.",
    )
