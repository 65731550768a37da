"""A program on a terminal of its own, with keys and what it shows."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slicewise.sandbox.cluster import Sandbox

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WAIT_S = 0.2


class Terminal:
    """The user's side of it: everything that the program has sent, and its end."""

    def __init__(self, master: int, process: "subprocess.Popen[str]") -> None:
        self._master, self.process = master, process
        self.sent = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def clear(self) -> None:
        """Forget what was sent so far."""
        self.text()
        self.sent = ""

    def text(self) -> str:
        """What was sent since the last ``clear``, without what moves the cursor or colours."""
        while select.select([self._master], [], [], _WAIT_S)[0]:
            try:
                self.sent += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:  # The program has ended.
                break
        return _CONTROL.sub("", self.sent)

    def modes(self) -> int:
        """The terminal's local modes, of which a program changes some."""
        return int(termios.tcgetattr(self._master)[3])


@contextmanager
def terminal(
    sandbox: Sandbox, user: str, argv: Sequence[str], rows: int = 24, columns: int = 80
) -> Iterator[Terminal]:
    """Run a program on a terminal; it is ended with the test."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    ends = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = sandbox.popen(user, ("env", "TERM=xterm", "LC_ALL=C.UTF-8", *argv), **ends)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)
