"""Lets services' waiting slots back onto the nodes that they avoid, when Slicewise is taken out."""

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.jobs import JobView, folded_tasks
from slicewise.cluster.language.slurm.interface import JobChange, Slurm, Target, Tasks
from slicewise.cluster.runtime.together import together
from slicewise.cluster.slurm.batch import address, update_words
from slicewise.slurm_plugin.rules.services.avoidance import avoidance_changes, avoiding


@dataclass(frozen=True)
class ReadmittedNodes:
    """Changes after which no waiting slot avoids a node; what its user excludes stays.

    Attributes:
        folded: waiting array tasks that share one record, by array.
    """

    changes: Mapping[Target, JobChange] = field(default_factory=dict, hash=False)
    folded: Mapping[int, frozenset[int]] = field(default_factory=dict, hash=False)

    def commands(self, targets: Collection[Target]) -> tuple[str, ...]:
        """The commands that make the changes of these targets."""
        return tuple(
            shlex.join(("scontrol", *words))
            for target in targets
            for words in update_words(target, self.changes[target], self.folded)
        )

    def left(self, refused: Mapping[Target, str]) -> Iterator[str]:
        """A sentence for each target that Slurm refused to change, with Slurm's words."""
        for target in (change for change in self.changes if change in refused):
            yield (
                f"Slurm does not let {address(target)} back onto the nodes that it avoids"
                f" ({refused[target]}). To do it yourself, if it still waits:"
                f" {'; '.join(self.commands((target,)))}"
            )


async def avoided_nodes(slurm: Slurm, jobs: Collection[JobView]) -> ReadmittedNodes:
    """What is to be changed of ``jobs``. Raises what ``Slurm`` raises."""
    releases = avoiding(jobs)
    excluded = await together(*(slurm.excluded_nodes(release.array_job_id) for release in releases))
    changes: dict[Target, JobChange] = {}
    for release, nodes in zip(releases, excluded, strict=True):
        changes |= avoidance_changes(release, jobs, nodes, ())
    arrays = {change.array_job_id for change in changes if isinstance(change, Tasks)}
    return ReadmittedNodes(changes, folded_tasks(job for job in jobs if job.array_job_id in arrays))
