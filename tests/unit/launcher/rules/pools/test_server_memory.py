"""Tests what is read of a door's word about memory."""

import pytest

from slicewise.launcher.rules.pools.server_memory import ServerMemory, server_memory


@pytest.mark.parametrize(
    ("text", "host_mib", "gpu_mib"),
    [
        (b"memory 512 2048\n", 512, 2048),
        *((text, 0, 0) for text in (b"", b"memory\n", b"memory 5\n", b"memory -5 1\n")),
        *((text, 0, 0) for text in (b"memory 5 1", b"memory 99999999999 1\n")),
        (b"memory 1 1\nmemory 7 0\n", 0, 0),
    ],
)
def test_memory_is_what_the_door_says_of_it(text: bytes, host_mib: int, gpu_mib: int):
    assert server_memory(text) == ServerMemory(host_mib, gpu_mib)
