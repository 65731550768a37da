"""Where slurmctld finds a site's job_submit.lua, and since when it is as it is."""

import os
from contextlib import suppress
from pathlib import Path


def job_submit_script() -> Path:
    """Return its path, beside the slurm.conf that $SLURM_CONF names, else in /etc/slurm."""
    conf = os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf"
    return Path(conf).with_name("job_submit.lua")


def script_since_s() -> float:
    """Return the Unix second at which it was changed last; 0 if it can't be seen.

    slurmctld has read it since: jobs from before were submitted to another one, or to none.
    """
    with suppress(OSError):
        return job_submit_script().stat().st_mtime
    return 0.0
