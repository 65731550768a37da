"""Writes settings of slurm.conf as lines that every Slurm can read.

slurmctld, every slurmd and every command end at a key without a value, and at a value in which a
blank stands outside quotes. Newer slurmctld end where a partition has a second line; older ones
forget what the first one said.
"""

import re
from collections.abc import Iterable, Mapping

from slicewise.cluster.language.findings import Mend, Place, deletion

_NOTHING = frozenset({"(null)", "n/a", "none"})
_PLAIN = re.compile(r"\S*")


def conf_words(config: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The words of a setting, such as ``FAIR_TREE`` of PriorityFlags; () if it has none."""
    return tuple(
        word
        for part in config.get(key, "").split(",")
        if (word := part.strip()) and word.lower() not in _NOTHING
    )


def conf_line(key: str, words: Iterable[str]) -> Mend:
    """The line of a setting that has these words; of none, that all its lines are to go."""
    text = ",".join(words)
    if not text:
        return deletion(Place.SLURM_CONF, key)
    value = text if _PLAIN.fullmatch(text) else f'"{text}"'
    return Mend(Place.SLURM_CONF, f"{key}={value}")


def partition_words(partition: str, words: str) -> Mend:
    """What is to be added to a partition's line, as a comment: it must not get a second line."""
    return Mend(Place.SLURM_CONF, f"# add to the line of partition {partition}: {words}")


def node_words(node: str, words: str) -> Mend:
    """What is to be added to a node's line, as a comment: Slurm ends at a second one."""
    return Mend(Place.SLURM_CONF, f"# add to the line of node {node}: {words}")


def not_of_partition(partition: str, key: str) -> Mend:
    """What is to go from a partition's line, as a comment."""
    return Mend(Place.SLURM_CONF, f"# take out of the line of partition {partition}: {key}")
