import os
from pathlib import Path

import pytest

from cluster.slurm_client.sbatch import Submitted, submit, why_no_start


def test_a_script_goes_to_the_cluster_whose_daemon_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text(
        "#!/bin/sh\n"
        'echo "${SLURM_CLUSTERS-none} ${SBATCH_CLUSTERS-none} $SBATCH_ACCOUNT" >>"$TOLD"\n'
        "echo 814\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    told = tmp_path / "told"
    variables = {"SLURM_CLUSTERS": "other", "SBATCH_CLUSTERS": "other", "SBATCH_ACCOUNT": "nlp"}
    variables |= {"TOLD": str(told), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert submit("#!/bin/sh\n") == Submitted(814, ())
    assert why_no_start("#!/bin/sh\n") == ""
    assert told.read_text() == "none none nlp\n" * 2
