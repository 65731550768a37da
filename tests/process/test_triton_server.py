import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from slicewise.sandbox.servers import triton

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="Triton wants numpy 1")


def test_staged_command_starts_the_real_server_from_a_quoted_path(tmp_path: Path) -> None:
    wrapper = triton.stage(tmp_path / "bin", tmp_path / "a dir's $(triton)")
    help_text = subprocess.run(
        [wrapper, "--help"], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert "--model-repository" in help_text.stdout + help_text.stderr
