"""Reads the batch scripts of many jobs by one ``scontrol``."""

import re
from collections.abc import Mapping, Sequence

from slicewise.cluster.language.slurm.values import answers


def script_questions(job_ids: Sequence[int], mark: str) -> str:
    """Lines for its standard input; the mark ends each script, whatever the script ends with."""
    return "".join(f"write batch_script {job_id} -\nshow hostnames {mark}\n" for job_id in job_ids)


def parse_scripts(text: str, job_ids: Sequence[int], mark: str) -> Mapping[int, str]:
    """Scripts by job id; a job is left out if Slurm does not return its script."""
    scripts = (
        re.sub(r"\A(?:scontrol: )?(?:write batch_script \d+ -\n)?", "", part)
        for part in answers(text, mark)
    )
    return {job_id: script for job_id, script in zip(job_ids, scripts, strict=False) if script}
