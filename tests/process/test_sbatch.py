import os
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.slurm.sbatch import Submitted, submit, submit_service, why_no_start


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


REFUSING = """\
#!/bin/sh
echo try >>"$TOLD"
[ "$(wc -l <"$TOLD")" -lt "$ANSWERS_AT" ] || { echo 814; exit 0; }
echo "sbatch: error: The slicewise daemon does not answer." >&2
echo "sbatch: error: $CODE" >&2
echo "sbatch: error: Batch job submission failed: Access/permission denied" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("code", "answers_at", "tries"),
    [("SW-DAEMON-DOWN", 3, 3), ("SW-DAEMON-DOWN", 99, 6), ("SW-QUOTA-NONE", 3, 1)],
)
def test_a_service_that_got_no_answer_is_tried_again(
    code: str, answers_at: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon decides later on a batch job that got none."""
    program, told = tmp_path / "sbatch", tmp_path / "told"
    program.write_text(REFUSING)
    program.chmod(0o755)
    variables = {"TOLD": str(told), "ANSWERS_AT": str(answers_at), "CODE": code}
    for name, value in (variables | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}).items():
        monkeypatch.setenv(name, value)
    pauses_s: list[float] = []
    if answers_at == tries:
        assert submit_service("#!/bin/sh\n", sleep=pauses_s.append) == Submitted(814, ())
    else:
        with pytest.raises(OutsideError, match=code):
            submit_service("#!/bin/sh\n", sleep=pauses_s.append)
    assert len(told.read_text().splitlines()) == tries == len(pauses_s) + 1
    assert sum(pauses_s) < 10
