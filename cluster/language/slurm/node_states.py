"""Slurm's words for the states of a node, as ``NodeView.states`` has them, by what they mean here.

``scontrol show node`` prints a base state and flags, such as ``IDLE+DRAIN``; other tools merge them
into one word, such as ``DRAINED``.
"""

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
RESERVED = frozenset({"MAINT", "MAINTENANCE", "RESERVED"})
"""States of a node in a reservation."""


def is_drained(node: NodeView) -> bool:
    """Whether an operator, or Slurm, lets nothing new start on the node; jobs may still run."""
    return "DRAIN" in node.states
