"""Tests what is read of a door's word about memory."""

import pytest

from slicewise.launcher.rules.pools.server_memory import ServerMemory, server_memory
from slicewise.launcher.rules.probing.start_marks import marks_s


@pytest.mark.parametrize(
    ("text", "host_mib", "gpu_mib"),
    [
        (b"script 3.25\nmemory 512 2048\n", 512, 2048),
        # The door's own line is the last.
        (b"memory 1 1\nscript 1.0\nmemory 7 0\n", 7, 0),
        *((text, 0, 0) for text in (b"", b"memory\n", b"memory 5\n", b"memory -5 1\n")),
        (b"memory 99999999999 1\n", 0, 0),
    ],
)
def test_memory_is_what_the_door_says_of_it(text: bytes, host_mib: int, gpu_mib: int):
    assert server_memory(text) == ServerMemory(host_mib, gpu_mib)
    assert "memory" not in marks_s(text, 100.0)
