"""Reads the file that ``sacctmgr dump`` writes, which ColdFront's ``slurm_dump`` writes as well.

A line is ``Account - 'NAME':KEY=VALUE:KEY=VALUE``, under the ``Parent - 'NAME'`` above it. sacctmgr
quotes text, and leaves TRES unquoted although the name of a GPU type has a colon in it
(``GrpTRES=gres/gpu:3g.40gb=2``; sacctmgr 22.05 can't load its own line again). The keys that
matter here are ``GrpTRES`` and ``GrpTRESMins``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import parse_tres

ROOT = "root"

_LINE = re.compile(r"(Cluster|Parent|Account|User) - '([^']+)'(?::(.*))?")
_SPEC = re.compile(
    r"(?P<key>[A-Za-z]+)(?P<sign>[+-]?)="
    r"(?:'(?P<quoted>.*?)'(?=:[A-Za-z]+[+-]?=|:?$)|(?P<plain>(?:gres/gpu:|[^:'])*)(?=:|$))"
)
"""A key and its value, at the beginning of a text. A name in quotes may have a quote in it."""
_LIMITS = {"grptres", "grptresmins"}
_COUNTED = ("billing", "gres/")
"""TRES that are kept. The others (cpu, mem) are no business of a quota."""
_COUNT = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class DumpedAccount:
    """An account, and what Slurm limits it to, or is to limit it to.

    Attributes:
        parent: the account above it; ``root`` at the top.
        grp_tres: what its jobs may hold together, by TRES (GRES and billing only).
        grp_tres_mins: TRES times minutes that its jobs may use, in the same way.
        quota: the TOML of a quota that the site wrote down for it, as in a table of a file of
            quotas; "" if there is none.
        unread: what the file says of its limits that can't be read.
    """

    account: str
    parent: str
    grp_tres: Mapping[str, int] = field(default_factory=dict, hash=False)
    grp_tres_mins: Mapping[str, int] = field(default_factory=dict, hash=False)
    quota: str = ""
    unread: tuple[str, ...] = ()


def parse_account_dump(text: str) -> tuple[DumpedAccount, ...]:
    """Return the dump's accounts, without root, in the order of the file.

    Raises InvalidInputError (SW-INPUT-FILE) for text that is no such file, and for a line that
    can't be read.
    """
    parent, has_cluster = "", False
    lines: dict[str, list[int]] = {}
    accounts: list[DumpedAccount] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not (has_cluster or match[1] == "Cluster"):
            raise InvalidInputError(
                Code.INPUT_FILE,
                f"Line {number} is none of a dump of sacctmgr: {line[:80]!r}.",
                "Write one with: sacctmgr dump CLUSTER file=FILE, or coldfront slurm_dump.",
            )
        kind, name, specs = match.groups()
        if kind == "Cluster":
            has_cluster = True
        elif kind == "Parent":
            parent = account_name(name)
        elif kind == "Account":
            lines.setdefault(account_name(name), []).append(number)
            accounts.append(account_limits(name, parent, (specs or "",)))
    for account, several in lines.items():
        if len(several) > 1:
            where = " and ".join(map(str, several))
            raise InvalidInputError(
                Code.INPUT_FILE,
                f"Lines {where} are one account, {account}: Slurm's names know no case.",
                "Take all but one out.",
            )
    if not has_cluster:
        raise InvalidInputError(Code.INPUT_FILE, "The file names no cluster.", "See its source.")
    return tuple(accounts)


def account_limits(
    account: str, parent: str, specs: Iterable[str], quota: str = ""
) -> DumpedAccount:
    """Return the limits of an account that has these ``KEY=VALUE:KEY=VALUE``, in any spelling.

    Of a key that stands twice, the last one counts, as sacctmgr has it.
    """
    read: dict[str, Mapping[str, int]] = {}
    unread = []
    for text in specs:
        rest = text
        while rest:
            match = _SPEC.match(rest)
            spec = rest.partition(":")[0] if match is None else match[0]
            rest = rest[len(spec) :].removeprefix(":")
            if match is None:
                unread.append(spec)
            elif (key := match["key"].lower()) in _LIMITS:
                counts = _counts(match["plain"] if match["quoted"] is None else match["quoted"])
                if counts is None or match["sign"]:
                    unread.append(spec)
                else:
                    read[key] = counts
    limits = (read.get("grptres", {}), read.get("grptresmins", {}))
    above = account_name(parent) or ROOT
    return DumpedAccount(account_name(account), above, *limits, quota, tuple(unread))


def _counts(text: str) -> Mapping[str, int] | None:
    """Read TRES that Slurm counts in whole numbers; -1 takes a limit away. None: unreadable."""
    counts = {name: count for name, count in parse_tres(text).items() if name.startswith(_COUNTED)}
    if not all(_COUNT.fullmatch(count) for count in counts.values()):
        return None
    return {name: int(count) for name, count in counts.items() if int(count) >= 0}
