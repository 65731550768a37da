"""Slurm's words for the states of a node, as ``NodeView.states`` has them, by what they mean here.

``scontrol show node`` prints a base state and flags, such as ``IDLE+DRAIN``; other tools merge them
into one word, such as ``DRAINED``.
"""

from collections.abc import Iterable

from slicewise.cluster.language.jobs import NodeView

OUT_OF_USE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "NOT_RESPONDING"})
"""States in which Slurm starts no job on a node."""
INVALID = ("INVAL", "INVALID_REG")
"""States of a node whose slurmd has registered with other resources than slurm.conf has."""
UNFIT = (
    *("DOWN", "DRAIN", "FAIL", *INVALID, "NOT_RESPONDING", "UNKNOWN"),
    *("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"),
    *("REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
)
"""States in which nothing can be done on a node, those to be named first at the front."""
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
_BOOTS = frozenset({"POWERING_UP", "POWER_UP"})
RESERVED = frozenset({"MAINT", "MAINTENANCE", "RESERVED"})
"""States of a node in a reservation."""


def is_drained(node: NodeView) -> bool:
    """Whether an operator, or Slurm, lets nothing new start on the node; jobs may still run."""
    return "DRAIN" in node.states


def read_states(words: Iterable[str]) -> frozenset[str]:
    """Return a node's states by Slurm's words for them.

    The slurmd of a node that power saving has ended, or that boots, can't answer: Slurm adds
    NOT_RESPONDING, but gives jobs to the node all the same. If the boot fails, it is DOWN.
    """
    states = frozenset(words)
    return states if states.isdisjoint(_ASLEEP | _BOOTS) else states - {"NOT_RESPONDING"}


def is_asleep(node: NodeView) -> bool:
    """Whether Slurm's power saving has ended the node: a job that gets it waits for its boot."""
    return not node.states.isdisjoint(_ASLEEP) and not boots(node)


def boots(node: NodeView) -> bool:
    """Whether Slurm has the node booted, for a job or by an operator's word."""
    return not node.states.isdisjoint(_BOOTS)
