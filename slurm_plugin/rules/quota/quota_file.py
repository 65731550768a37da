"""Reads a file of quotas: changes of several tenants together, in TOML."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import BUDGETED, SLICES, TOKENS
from slicewise.cluster.language.toml_text import read_toml, toml_key
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.quota.amounts import (
    NONE,
    BudgetWords,
    budget_from_words,
)
from slicewise.slurm_plugin.rules.quota.attributes import SETTINGS, QuotaSetting
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    Policy,
    Quota,
    Tenant,
    TenantUpdate,
)

_EXAMPLE = """\
# What is to change, a table a tenant; what is left out stays as it is. The words are those of
# slicewise tenant-quota set and slicewise budget set. Amounts are slices; of budgets, slice-hours,
# or tokens.
[tenants.vision]
%s
[tenants.nlp]
nominal = 9
budget = { period = "month", amount = 1000, carry_over = "all", overdraft = 50 }    # or "none"
token_budget = { period = "month", amount = 2000000 }

[tenants.speech]
parent = "nlp"                      # moved below another tenant; "" is at the top

[tenants.course]
remove = true                       # nothing else beside it; those below it are named, too
"""


def _example_line(setting: QuotaSetting) -> str:
    line = f"{setting.key} = {setting.example}"
    return f"{line:<36}# {setting.note}\n" if setting.note else f"{line}\n"


EXAMPLE = _EXAMPLE.replace("%s", "".join(map(_example_line, SETTINGS)), 1)

_NAMES = ("vision", "nlp", "speech", "course")
"""The tenants of ``EXAMPLE``, a table each, in its order."""
_TYPE = "3g.40gb"


def example(tenants: Sequence[str], types: Sequence[str]) -> str:
    """Return ``EXAMPLE`` with a site's first tenants and its first GPU type.

    Tables for which the site has no tenant are comments. A site without tenants gets it as it is.
    """
    text = EXAMPLE.replace(f'"{_TYPE}"', f'"{types[0] if types else _TYPE}"')
    if not tenants:
        return text
    head, *tables = text.split("[tenants.")
    tables = [f"[tenants.{table}" for table in tables]
    for number in range(len(tenants), len(tables)):
        tables[number] = "".join(f"# {line}" for line in tables[number].splitlines(keepends=True))
    text = head + "".join(tables)
    # In one pass: a site's own tenant may have the name of another table.
    names = dict(zip(_NAMES, tenants, strict=False))

    def written(before: str, name: str) -> str:
        return name if before.endswith('"') else toml_key(name)

    return re.sub(
        rf'(\[tenants\.|parent = ")({"|".join(_NAMES)})(?=[\]"])',
        lambda match: match[1] + written(match[1], names.get(match[2], match[2])),
        text,
    )


_TENANTS = "tenants"
_REMOVE = "remove"
_BUDGETS = {SLICES.name: "budget", TOKENS.name: "token_budget"}
"""The key of a budget, by its meter."""
_KEYS = (*(setting.key for setting in SETTINGS), *_BUDGETS.values(), "parent", _REMOVE)
_BUDGET_KEYS = ("period", "amount", "carry_over", "overdraft")

_HEADING = re.compile(r"""\s*\[\s*tenants\s*\.\s*(?P<name>[\w-]+|"[^"]*"|'[^']*')\s*[\].]""")
_ANY_HEADING = re.compile(r"\s*\[\[?[^\[\]=,]+\]\]?\s*(#.*)?$")

_T = TypeVar("_T")


class FileFaults:
    """Collects everything that is wrong with a file, to report all of it together.

    ``file`` is what the file is called in words, ``text`` its text where it has lines to name.
    """

    def __init__(self, file: str, text: str = "") -> None:
        self._file = file
        self._lines = _table_lines(text)
        self._faults: dict[str, list[str]] = {}

    @property
    def tenants(self) -> AbstractSet[str]:
        """The tenants whose tables are faulty."""
        return self._faults.keys()

    def add(self, tenant: str, error: InvalidInputError) -> None:
        """Note a fault in the table of that tenant."""
        several = self._lines.get(tenant, ())
        line = f"line {several[0][0]}: " if several else ""
        self._faults.setdefault(tenant, []).append(f"{line}[{_TENANTS}.{tenant}] {error}")

    def tried(self, tenant: str, read: Callable[..., _T | None], *given: object) -> _T | None:
        """Return what ``read`` returns; if it refuses, note the fault and return None."""
        try:
            return read(*given)
        except InvalidInputError as error:
            self.add(tenant, error)
            return None

    def check_spellings(self, written: Iterable[str]) -> None:
        """Note the accounts of which there are several tables, in several spellings."""
        names: dict[str, list[str]] = {}
        for name in written:
            names.setdefault(account_name(name), []).append(name)
        for account, several in names.items():
            if len(several) > 1:
                lines = " and ".join(str(first) for first, _ in self._lines.get(account, ()))
                where = f", lines {lines}," if lines else ""
                error = InvalidInputError(
                    Code.INPUT_FILE,
                    f"{' and '.join(several)}{where} are one account.",
                    "Slurm's account names know no case: write one table.",
                )
                self.add(account, error)

    def check(self, right: Sequence[str] = ()) -> None:
        """Raise InvalidInputError (SW-INPUT-FILE) if there are faults.

        ``right`` says what the other tables would set, a text for each.
        """
        if not self._faults:
            return
        said = [fault for several in self._faults.values() for fault in several]
        if right:
            ranges = [lines for name in self._faults for lines in self._lines.get(name, ())]
            where = ", ".join(f"{a} to {b}" if b > a else str(a) for a, b in sorted(ranges))
            taken = f"lines {where}" if where else ", ".join(map(_table_name, self._faults))
            said += [f"The other {len(right)} are right. Without {taken} it would set:", *right]
        raise unreadable(self._file, "\n".join(("nothing was changed.", *said)))


def _table_name(tenant: str) -> str:
    return f"[{_TENANTS}.{tenant}]"


def _table_lines(text: str) -> Mapping[str, Sequence[tuple[int, int]]]:
    """The first and last line of each table, by account; an account may have several."""
    lines: dict[str, list[tuple[int, int]]] = {}
    name, first, last = "", 0, 0

    def end() -> None:
        if name:
            lines.setdefault(account_name(name), []).append((first, last))

    for number, line in enumerate(text.split("\n"), 1):
        heading = _HEADING.match(line)
        written = _name(heading["name"]) if heading is not None else ""
        if heading is not None and written != name:
            end()
            name, first, last = written, number, number
        elif heading is None and _ANY_HEADING.match(line):
            end()
            name = ""
        elif line.strip() and not line.lstrip().startswith("#"):
            last = number
    end()
    return lines


def _name(key: str) -> str:
    return key[1:-1] if key[0] in {"'", '"'} else key


def quota_updates(
    file: str, text: str, policy: Policy, settings: Settings
) -> tuple[tuple[TenantUpdate, ...], FileFaults]:
    """Return one update for each table of a file's text, in its order, and what is wrong with the
    others: ``FileFaults.check`` must be asked before anything is done.

    Raises InvalidInputError (SW-INPUT-FILE) for text that is no such file.
    """
    faults = FileFaults(file, text)
    updates = table_updates(_tables(file, text), policy, settings, faults)
    return updates, faults


def table_updates(
    tables: Mapping[str, object], policy: Policy, settings: Settings, faults: FileFaults
) -> tuple[TenantUpdate, ...]:
    """Return what each table sets of its account, without those in which something is wrong."""
    faults.check_spellings(tables)
    updates = tuple(
        table_update(account_name(name), table, policy, settings, faults)
        for name, table in tables.items()
    )
    return tuple(update for update in updates if update.tenant not in faults.tenants)


def _tables(file: str, text: str) -> Mapping[str, object]:
    try:
        # Numbers with a point stay text, because amounts are read exactly.
        content = read_toml(text, parse_float=str)
    except ValueError as error:
        raise unreadable(file, f"it is not TOML: {error}.") from None
    tables = content.get(_TENANTS)
    if not isinstance(tables, dict) or not tables or len(content) != 1:
        others = "".join(f" [{name}]" for name in content if name != _TENANTS)
        others_found = f" Found:{others}." if others else ""
        raise unreadable(
            file, f"it must hold tables [tenants.NAME], and nothing else.{others_found}"
        )
    return tables


def unreadable(file: str, why: str) -> InvalidInputError:
    """Return the error SW-INPUT-FILE for that file."""
    return InvalidInputError(
        Code.INPUT_FILE, f"{file}: {why}", "See: slicewise tenant-quota apply --example"
    )


def table_update(
    name: str, table: object, policy: Policy, settings: Settings, faults: FileFaults
) -> TenantUpdate:
    """Return what one table of a file sets; what is wrong in the table goes to ``faults``."""
    faults.tried(name, _keyed, "it", table, _KEYS)
    words = table if isinstance(table, dict) else {}
    if _REMOVE in words:
        faults.tried(name, _check_removal, words)
        return TenantUpdate(name, removed=True)
    before = policy.get(name, Tenant(name, "", Quota(Millislices(0))))
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.key in words:
            values |= faults.tried(name, _values, setting, words, before.quota, settings) or {}
    return TenantUpdate(
        name,
        budget=faults.tried(name, _budget, before, words, SLICES.name),
        token_budget=faults.tried(name, _budget, before, words, TOKENS.name),
        parent=faults.tried(name, _parent, words),
        **values,
    )


def _check_removal(words: Mapping[str, object]) -> None:
    if words[_REMOVE] is not True or len(words) > 1:
        raise InvalidInputError(
            Code.INPUT_FILE,
            "remove is true, and the only key of its table.",
            "Take out the other keys, or the key remove.",
        )


def _parent(words: Mapping[str, object]) -> str | None:
    given = words.get("parent")
    if given is None or isinstance(given, str):
        return given if given is None else account_name(given)
    raise InvalidInputError(
        Code.VALUE, f"parent: {given!r} is not text.", 'Name a tenant; "" is at the top.'
    )


def _keyed(what: str, table: object, keys: tuple[str, ...]) -> Mapping[str, object]:
    """Return the table; raises InvalidInputError (SW-INPUT-FILE) if empty or with other keys."""
    if not isinstance(table, dict) or not table:
        raise _bad(f"{what} must be a table that sets something", keys)
    if unknown := [key for key in table if key not in keys]:
        raise _bad(f"no such key: {', '.join(_like(key, keys) for key in unknown)}", keys)
    return table


def _like(key: str, keys: tuple[str, ...]) -> str:
    near = get_close_matches(key, keys, 1)
    return f"{key} (did you mean {near[0]}?)" if near else key


def _bad(problem: str, keys: tuple[str, ...]) -> InvalidInputError:
    return InvalidInputError(Code.INPUT_FILE, f"{problem}.", f"Keys: {', '.join(keys)}.")


def _values(
    setting: QuotaSetting, words: Mapping[str, object], quota: Quota, settings: Settings
) -> Mapping[str, object]:
    key, given = setting.key, words[setting.key]
    if not setting.is_table:
        return setting.read(_text(given, key), key, quota, settings)
    if not isinstance(given, dict) or not given:
        raise InvalidInputError(
            Code.INPUT_FILE,
            f"{key}: it must be a table such as {setting.example}.",
            f"{setting.note}.",
        )
    pairs = (f"{name}={_text(amount, name)}" for name, amount in given.items())
    return setting.read(pairs, key, quota, settings)


def _text(value: object, key: str) -> str:
    """Return a number or text as text, for the parsers of the command's options.

    Raises InvalidInputError (SW-VALUE) for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInputError(Code.VALUE, f"{key}: {value!r} is neither a number nor text.")
    return str(value)


def _budget(
    before: Tenant, words: Mapping[str, object], meter: str
) -> Budget | Literal["off"] | None:
    name = _BUDGETS[meter]
    if name not in words:
        return None
    if words[name] == NONE:
        return "off"
    given = _keyed(name, words[name], _BUDGET_KEYS)
    texts = {key: _text(value, key) for key, value in given.items()}
    budget = before.budget_on(meter)
    return budget_from_words(before.name, budget, BudgetWords(**texts), BUDGETED[meter])
