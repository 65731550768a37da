"""When the simulated daemon looks at Slurm, as ``services/pace.py`` has it for batch jobs."""

from dataclasses import dataclass
from math import floor, inf

from slicewise.slurm_plugin.rules.services.pace import STIRRED_S


@dataclass
class Looks:
    """The looks of a daemon at Slurm.

    Attributes:
        moving_s, rest_s: seconds between two looks while something was heard of lately, and
            otherwise.
        looked_s: the last look that showed anything new, in Unix seconds.
        heard_s: when a job was submitted last.
    """

    moving_s: float
    rest_s: float
    looked_s: float = -inf
    heard_s: float = -inf

    def due_s(self, changed_s: float) -> float:
        """The first look that shows what changed at ``changed_s``; inf if nothing changed."""
        if changed_s == inf or self.looked_s == -inf:
            return changed_s
        every_s = self.moving_s if changed_s <= self.heard_s + STIRRED_S else self.rest_s
        passed = max(0, floor((changed_s - self.looked_s) / every_s))
        return self.looked_s + (passed + 1) * every_s
