"""Makes many changes of pending jobs with few ``scontrol`` processes."""

import asyncio
from collections.abc import Mapping, Sequence

from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.cluster.language.slurm.job_rows import parse_pending
from slicewise.cluster.language.slurm.unread import ignored
from slicewise.cluster.slurm.batch import (
    Words,
    fits_on_a_line,
    is_taken_by_the_first_only,
    own_words,
    refusals,
    update_script,
    update_words,
)
from slicewise.cluster.slurm.run_command import CHANGE_DEADLINE_S, IDS, SQUEUE, attempt, secret

_SINGLE_UPDATES = 8
_UPDATES = 200
"""Changes by one ``scontrol``: slurmctld takes a lock for each."""


async def change_jobs(changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
    """Do what ``Slurm.update`` says, by one ``scontrol`` for every 200 changes.

    A change that does not fit on a line of its input, such as one with blanks in a value, gets
    ``scontrol`` processes of its own.
    """
    untouched = await _untouched(changes)
    words_of_job = {each[0]: update_words(*each, untouched) for each in changes.items()}
    together = [each for each in words_of_job.items() if all(map(fits_on_a_line, each[1]))]
    alone = [each for each in words_of_job.items() if not all(map(fits_on_a_line, each[1]))]
    refused: dict[Target, str] = {}
    for start in range(0, len(together), _UPDATES):
        refused |= await _update(dict(together[start : start + _UPDATES]))
    turn = asyncio.Semaphore(_SINGLE_UPDATES)

    async def one(target: Target, commands: Sequence[Words]) -> None:
        async with turn:
            replies = [await attempt(("scontrol", *words)) for words in commands]
        complaints = (own_words(reply.complaint) for reply in replies if reply.status)
        if words := "\n".join(filter(None, complaints)):
            refused[target] = words

    await asyncio.gather(*(one(*each) for each in alone))
    return refused


async def _untouched(changes: Mapping[Target, JobChange]) -> Mapping[int, frozenset[int]]:
    """For arrays that can't be changed by a list of tasks: tasks that share a record, by array."""
    arrays = {
        target.array_job_id
        for target, change in changes.items()
        if isinstance(target, Tasks) and is_taken_by_the_first_only(target, change)
    }
    if not arrays:
        return {}
    only = f"--jobs={','.join(map(str, sorted(arrays)))}"
    # squeue fails if Slurm knows none of the arrays any more.
    reply = await attempt((*SQUEUE, "--states=pending", only, IDS))
    folded = "\n".join(line for line in reply.output.splitlines() if "[" in line)
    return parse_pending(folded, ignored)


async def _update(changes: Mapping[Target, Sequence[Words]]) -> Mapping[Target, str]:
    mark = secret()
    script = update_script(changes.values(), mark)
    reply = await attempt(("scontrol",), stdin=script, deadline_s=CHANGE_DEADLINE_S)
    return refusals(reply.complaint, mark, tuple(changes))
