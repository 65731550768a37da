"""Slurm's commands as scripts in a directory: a batch job runs locally, its comment is a file."""

import stat
from pathlib import Path

_SBATCH = """\
cat >$here/script
rm -f $here/ended $here/comment
test -e $here/waits || (cd / && SLURM_JOB_ID=7 sh $here/script >/dev/null 2>$here/errors;
    touch $here/ended) >/dev/null 2>&1 &
echo 7
"""
_SQUEUE = """\
state=RUNNING
test ! -e $here/waits || state=PENDING
test ! -e $here/ended || state=COMPLETED
test ! -e $here/dies || state=NODE_FAIL
echo "$state|Resources|$(cat $here/comment 2>/dev/null || echo "(null)")"
"""
_SCONTROL = """\
case "$*" in
update\\ JobId=7\\ Comment=*)
    # At one moment, as slurmctld does: whoever read an empty one would write over it.
    printf %s "${3#Comment=}" >$here/comment.$$
    mv $here/comment.$$ $here/comment ;;
*show\\ job\\ 7) echo "JobId=7 Comment=$(cat $here/comment 2>/dev/null) StdErr=/dev/null" ;;
*show\\ node*) echo SlurmdStartTime=17 ;;
esac
"""


def command(place: Path, name: str, script: str) -> None:
    """Write one command, which appends its name and arguments as a line to ``given``."""
    path = place / name
    here = f"here={place}"
    path.write_text(f'#!/bin/sh\n{here}\necho "{name} $*" >>$here/given\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def given(place: Path) -> list[str]:
    """The commands that were run, except those that looked at the job."""
    lines = (place / "given").read_text().splitlines()
    return [one for one in lines if not one.startswith("squeue") and "show job" not in one]


def runs_jobs(place: Path) -> None:
    """Write the commands for one batch job, which runs immediately.

    While a file ``waits`` exists it waits instead; a file ``dies`` makes its node fail.
    """
    scripts = (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scontrol", _SCONTROL))
    for name, script in (
        *scripts,
        ("sinfo", "echo 'gpu|3/5/0/8'; echo 'all|3/5/0/8'"),
        ("scancel", ""),
    ):
        command(place, name, script)
