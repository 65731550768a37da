"""Turns differences into sacctmgr commands, in an order that never allows more in between."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby

from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed, qos_name
from slicewise.slurm_plugin.rules.limits.desired import (
    DEFAULT_QOS,
    EXEMPT,
    FLAGS,
    INHERITED,
    NAME,
    PREEMPT,
    PREEMPT_MODE,
    QOS_LIST,
    Difference,
    SlurmLimits,
)

LimitChange = tuple[str, ...]
"""The words of one sacctmgr command."""

Stage = tuple[LimitChange, ...]
"""Changes that may run at the same time."""

_Entity = tuple[str, str, str, str]
Unit = tuple[str, str, str, str, str]
"""What Slurm accepts or refuses as a whole: kind ("account" or "qos"), name, user, partition, and
an account's field without its TRES."""

_ODD = re.compile(r"""[\[\],'"`\x00-\x1f\x7f]|^\s|\s$""")

_MOST_BYTES = 16 * 1024
"""The most bytes of names in a command. Linux allows 128 KiB in a word, and a coordinator may make
any number of accounts, with names of 255 bytes."""

_MOST_ADDED = 100
"""The most QOS that are added to a preempt list by ``+=``. slurmdbd nests an expression of SQL for
each: seen with 200, MariaDB refuses that (1436, thread stack overrun) and nothing is added."""

_LISTS = frozenset({QOS_LIST, PREEMPT})
_NO_LIMITS = frozenset({QOS_LIST, DEFAULT_QOS, PREEMPT, PREEMPT_MODE, EXEMPT, FLAGS, NAME})


def can_be_named(difference: Difference) -> bool:
    """Whether the names of a setting can be passed to sacctmgr.

    sacctmgr expands a name with a bracket to several names, and reads everything behind an open
    bracket as a single name; quotes don't help. Coordinators choose the names below their accounts.
    """
    names = (difference.key.name, difference.user, difference.partition)
    return not any(_ODD.search(name) for name in names)


def stages(
    differences: Iterable[Difference], slurm_limits: SlurmLimits, *, apart: bool = False
) -> tuple[Stage, ...]:
    """Return the changes that bring Slurm to what is wanted; each stage comes after the one before.

    With ``apart`` each ``unit`` has a command of its own, so that a change that Slurm refuses does
    not prevent others.

    New QOS come first, with their limits (``growth.without``). Then limits shrink and new QOS come
    into use, and then limits grow. So at no moment more is allowed than before or after. Slurm
    refuses a default QOS to which a user, or an account below, has no access because of a list of
    its own. So such lists gain QOS before defaults change, and lose QOS after.
    """
    parts = [part for difference in differences for part in _parts(difference)]
    shrinking = {_entity(part) for part in parts if shrinks(part)}
    stage_of: dict[int, list[Difference]] = {}
    for own_part in parts:
        stage_of.setdefault(_stage(own_part, shrinking, slurm_limits), []).append(own_part)
    return tuple(_modified(stage_of[number], slurm_limits, apart) for number in sorted(stage_of))


def units_of(
    differences: Iterable[Difference], slurm_limits: SlurmLimits
) -> Mapping[LimitChange, Unit]:
    """Return the unit of each change that ``stages`` makes with ``apart``."""
    return {
        change: whose
        for whose, own in groupby(sorted(differences, key=unit), key=unit)
        for stage in stages(own, slurm_limits, apart=True)
        for change in stage
    }


def unit(difference: Difference) -> Unit:
    """Return the unit of a difference, which Slurm accepts or refuses as a whole.

    A unit is an account's limits of one kind, a QOS list, a default QOS, or all settings of a QOS,
    which may have to be created.
    """
    return *_entity(
        difference
    ), "" if difference.key.entity == "qos" else difference.key.field.partition("=")[0]


def _parts(difference: Difference) -> tuple[Difference, ...]:
    """Split the change of a list of its own into what the list gains and, after that, loses."""
    if not _is_own_list(difference):
        return (difference,)
    both = ",".join(sorted(_names(difference.now) | _names(difference.wanted)))
    halves = (replace(difference, wanted=both), replace(difference, now=both))
    return tuple(half for half in halves if half.now != half.wanted)


def _is_own_list(difference: Difference) -> bool:
    """Whether the difference is the QOS list of a user, or of an account that is no tenant."""
    names = {qos_name(difference.key.name), INHERITED}
    return difference.key.field == QOS_LIST and (
        bool(difference.user) or not names & _names(difference.wanted)
    )


def _stage(
    difference: Difference, shrinking: Collection[_Entity], slurm_limits: SlurmLimits
) -> int:
    if difference.key.entity == "qos" and difference.key.name not in slurm_limits.qos:
        # The own QOS name the borrowed ones in their preempt lists, so these must exist before.
        return 0 if is_borrowed(difference.key.name) else 1
    if difference.user or _is_own_list(difference):
        return 2 if _names(difference.wanted) > _names(difference.now) else 5
    first = shrinks(difference) or (_no_limit(difference) and _entity(difference) in shrinking)
    return 3 if first else 4


def stages_back(differences: Sequence[Difference], slurm_limits: SlurmLimits) -> tuple[Stage, ...]:
    """Return the stages that take Slicewise's lists, defaults and limits out of Slurm.

    Users come first, then accounts from the top down: Slurm does not remove an account's default
    QOS while the account would inherit a default that its own list does not have.
    """
    levels: dict[int, list[Difference]] = {}
    for difference in differences:
        levels.setdefault(0 if difference.user else _depth(difference, slurm_limits), []).append(
            difference
        )
    return tuple(_modified(levels[depth], slurm_limits) for depth in sorted(levels))


def removal(qos: Iterable[str]) -> LimitChange:
    """Return the command that removes QOS; Slurm also takes them out of every list."""
    return ("remove", "qos", "where", f"name={','.join(sorted(qos))}")


def _no_limit(difference: Difference) -> bool:
    return difference.key.field in _NO_LIMITS


def shrinks(difference: Difference) -> bool:
    """Whether the change lowers a limit, or sets one where none is."""
    if _no_limit(difference) or not difference.wanted:
        return False
    return not difference.now or int(difference.wanted) < int(difference.now)


def _entity(difference: Difference) -> _Entity:
    return difference.key.entity, difference.key.name, difference.user, difference.partition


def _depth(difference: Difference, slurm_limits: SlurmLimits) -> int:
    depth, row = 0, slurm_limits.accounts.get(difference.key.name)
    while row is not None:
        depth, row = depth + 1, slurm_limits.accounts.get(row.parent)
    return depth


def _modified(
    differences: Sequence[Difference], slurm_limits: SlurmLimits, apart: bool = False
) -> Stage:
    """Combine equal changes into one command, as each command takes a good part of a second."""
    together: dict[tuple[str, str, str, LimitChange, str], list[str]] = {}
    by = unit if apart else _entity
    ordered = sorted(differences, key=by)
    for (kind, name, user, partition, *_), fields in groupby(ordered, key=by):
        words = tuple(_words(list(fields), new=kind == "qos" and name not in slurm_limits.qos))
        alone = name if apart else ""
        together.setdefault((kind, user, partition, words, alone), []).append(name)
    return tuple(
        bite
        for (kind, user, partition, words, _), names in together.items()
        for some in _in_parts(names)
        for bite in _in_bites(
            _user_command(user, partition, some, words, slurm_limits)
            if user
            else _command(kind, some, words, slurm_limits)
        )
    )


def _in_bites(change: LimitChange) -> Iterator[LimitChange]:
    """Split a command that adds more to a preempt list than slurmdbd can add at one time."""
    added = f"{PREEMPT}+="
    word = next((word for word in change if word.startswith(added)), "")
    names = word.removeprefix(added).split(",")
    yield tuple(
        f"{added}{','.join(names[:_MOST_ADDED])}" if text == word else text for text in change
    )
    for first in range(_MOST_ADDED, len(names), _MOST_ADDED):
        some = ",".join(names[first : first + _MOST_ADDED])
        yield (*change[: change.index("set") + 1], f"{added}{some}")


def _in_parts(names: Iterable[str]) -> Iterator[Sequence[str]]:
    part: list[str] = []
    used = 0
    for name in names:
        size = len(name.encode())
        if part and used + size > _MOST_BYTES:
            yield part
            part, used = [], 0
        part.append(name)
        used += size + 1
    yield part


def _user_command(
    user: str,
    partition: str,
    accounts: Sequence[str],
    words: LimitChange,
    slurm_limits: SlurmLimits,
) -> LimitChange:
    where = (f"name={user}", f"account={','.join(accounts)}", f"cluster={slurm_limits.cluster}")
    only = (f"partition={partition}",) if partition else ()
    return ("modify", "user", "where", *where, *only, "set", *words)


def _command(
    entity: str, names: Sequence[str], words: LimitChange, slurm_limits: SlurmLimits
) -> LimitChange:
    name, cluster = ",".join(names), f"cluster={slurm_limits.cluster}"
    if entity == "account":
        return ("modify", "account", "where", f"name={name}", cluster, "set", *words)
    if names[0] in slurm_limits.qos:
        return ("modify", "qos", "where", f"name={name}", "set", *words)
    return ("add", "qos", name, *words)


def _words(differences: Sequence[Difference], *, new: bool) -> Iterable[str]:
    """Yield sacctmgr's words: ``grptres=billing=3000,gres/gpu:1g.10gb=2``, ``qos+=...``.

    -1 means no limit.
    """
    limits: dict[str, list[str]] = {}
    for difference in sorted(differences, key=lambda d: d.key.field):
        if not _no_limit(difference):
            word, _, tres = difference.key.field.partition("=")
            limits.setdefault(word, []).append(f"{tres}={difference.wanted or -1}")
    yield from (f"{word}={','.join(parts)}" for word, parts in limits.items())
    for difference in differences:
        if difference.key.field in _LISTS:
            yield from _list_words(difference, new=new)
    for difference in differences:
        if difference.key.field == DEFAULT_QOS:
            yield f"{DEFAULT_QOS}={difference.wanted or -1}"
        if difference.key.field == FLAGS:
            yield f"{FLAGS}{'=' if new else '+='}{difference.wanted}"
        if difference.key.field == PREEMPT_MODE:
            yield f"{PREEMPT_MODE}={difference.wanted}"
        if difference.key.field == EXEMPT:
            yield f"{EXEMPT}={_minutes(difference.wanted)}"


def _list_words(difference: Difference, *, new: bool) -> Iterable[str]:
    if difference.wanted == INHERITED:
        yield f"{difference.key.field}="
        return
    now, then = _names(difference.now), _names(difference.wanted)
    if then - now:
        yield f"{difference.key.field}{'=' if new else '+='}{','.join(sorted(then - now))}"
    if now - then:
        yield f"{difference.key.field}-={','.join(sorted(now - then))}"


def _minutes(seconds: str) -> str:
    """Format seconds as sacctmgr's ``2:30``; sacctmgr takes a number alone for minutes."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}" if seconds else "-1"


def _names(text: str) -> set[str]:
    return set(text.split(",")) - {""}


def changed_qos(changes: Iterable[LimitChange]) -> frozenset[str]:
    """Return the QOS that these commands change."""
    named = (
        change[3].removeprefix("name=").split(",")
        for change in changes
        if change[:3] == ("modify", "qos", "where")
    )
    return frozenset(chain.from_iterable(named))
