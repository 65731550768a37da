"""Runs slicewise.lua under real Lua, with a stub of Slurm's table and a stand-in for the daemon."""

import json
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "slurm_plugin" / "lua" / "slicewise.lua"
RUN_CASE = Path(__file__).with_name("run_case.lua")
ALICE, SLURM_UID, ROOT_UID = 61001, 64030, 0
PARTITIONS = {"cpu": {"flag_default": 0}, "gpu": {"flag_default": 1}}
SUCCESS, DENIED, POLICY = 0, 2002, 2050
UNSET, UNSET_16 = 4294967294, 65534
NOTHING = {
    "priority": UNSET,
    "min_nodes": UNSET,
    "max_nodes": UNSET,
    "min_cpus": UNSET,
    "num_tasks": UNSET,
    "time_limit": UNSET,
    "ntasks_per_node": UNSET_16,
    "ntasks_per_socket": UNSET_16,
    "ntasks_per_tres": UNSET_16,
    "cpus_per_task": UNSET_16,
    "shared": UNSET_16,
    "requeue": UNSET_16,
}
"""A change of something else, as slurmctld shows it."""

LUAS = ("lua5.1", "lua5.3", "lua5.4")
"""Those that packages of Slurm link: Debian's, SchedMD's, those of Enterprise Linux."""

ENOUGH_S = PATIENCE_S / 2
"""Within it each question is answered that the daemon answers, on a busy machine too."""

Reply = Callable[[dict[str, Any]], bytes | None]


class Daemon:
    """Listens as the daemon does; answers with what ``reply`` says, None is silence.

    Attributes:
        questions: all that were asked, in order.
        connections: how many were opened.
        closes: after each answer; then there is the file ``closed(1)`` of the first one.
    """

    def __init__(self, path: Path, reply: Reply, *, closes: bool = False) -> None:
        self.questions: list[dict[str, Any]] = []
        self.connections = 0
        self.closes = closes
        self._path = path
        self._reply = reply
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            for line in connection.makefile("rb"):
                self.questions.append(json.loads(line.decode("utf-8", "replace")))
                answer = self._reply(self.questions[-1])
                if answer is not None:
                    connection.sendall(answer)
                if self.closes:
                    connection.shutdown(socket.SHUT_RDWR)
                    Path(self.closed(self.connections)).touch()

    def closed(self, number: int) -> str:
        """The file that is there once that connection, counted from 1, has been closed."""
        return str(self._path.with_name(f"closed-{number}"))

    def accepted(self, at_least: int) -> int:
        """How many connections were opened: on a busy machine it accepts late."""
        until(lambda: self.connections >= at_least)
        return self.connections

    def asked(self, at_least: int) -> int:
        """How many questions there were: on a busy machine it reads late."""
        until(lambda: len(self.questions) >= at_least)
        return len(self.questions)

    def drip(self) -> None:
        """Say a byte now and then on the newest connection, until it is closed."""
        with suppress(OSError):
            while True:
                self._open[-1].sendall(b"x")
                time.sleep(0.005)

    def until_left(self) -> None:
        """Until the other end closes the first connection, or says more there."""
        with suppress(OSError):
            self._open[0].recv(1, socket.MSG_PEEK)

    def close(self) -> None:
        """End, and with it all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def answering(**answer: object) -> Reply:
    """One answer to all; ``TOKEN`` in its tag becomes the question's."""

    def reply(question: dict[str, Any]) -> bytes:
        text = json.dumps({"v": 1, **answer})
        return text.replace("TOKEN", question["token"]).encode() + b"\n"

    return reply


class Interpreter:
    """A Lua that runs one case after the other: to start one for each took longer than the case."""

    name = LUAS[0]
    """Of the one that is to run them: each test runs once under each of ``LUAS`` (conftest.py)."""
    running: ClassVar[dict[str, "Interpreter"]] = {}

    def __init__(self, name: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by _last_words
        pipe = subprocess.PIPE
        self._lua = subprocess.Popen(
            ("setpriv", "--pdeathsig", "KILL", name, RUN_CASE),
            stdin=pipe,
            stdout=pipe,
            stderr=self._errors,
        )

    @classmethod
    def run(cls, case: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each of its calls did. If Lua dies of it, AssertionError says what Lua said."""
        if cls.name not in cls.running:
            cls.running[cls.name] = cls(cls.name)
        done = cls.running[cls.name]._run(case)
        if done is None:
            raise AssertionError(cls.running.pop(cls.name)._last_words())
        return done

    def _run(self, case: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        stdin, stdout = self._lua.stdin, self._lua.stdout
        assert stdin is not None
        assert stdout is not None
        too_late = threading.Timer(PATIENCE_S, self._lua.kill)
        too_late.start()
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(case, ensure_ascii=False).encode() + b"\n")
            stdin.flush()
        lines: list[bytes] = []
        while not lines or lines[-1].strip():
            lines.append(stdout.readline())
        too_late.cancel()
        # An empty line ends the case; none at all is the end of Lua.
        return [json.loads(line) for line in lines[:-1]] if lines[-1] else None

    def _last_words(self) -> str:
        self._lua.communicate()
        with self._errors as errors:
            errors.seek(0)
            return errors.read().decode()

    @classmethod
    def end_all(cls) -> None:
        """End those that were started."""
        for one in cls.running.values():
            one._last_words()
        cls.running.clear()


def run_calls(path: Path, calls: list[dict[str, Any]], **case: Any) -> list[dict[str, Any]]:
    """The calls, one after the other, of one slicewise.lua that asks on that socket.

    Its clock stands still but for what a call or the case sets (run_case.lua).
    """
    options = {
        "socket": str(path),
        "off_file": str(path.with_name("off")),
        "slurm_uid": SLURM_UID,
        "timeout_s": 0.5,
    }
    options |= case.pop("configure", {})
    whole = {"module": str(MODULE), "configure": options, "part_list": PARTITIONS}
    whole |= {"patience_s": ENOUGH_S} | case
    whole["calls"] = [{"call": "job_submit", "uid": ALICE, **call} for call in calls]
    results = Interpreter.run(whole)
    assert not any(result["read_assoc_qos"] for result in results)
    return results


def run_case(path: Path, call: str = "job_submit", **case: Any) -> dict[str, Any]:
    """One call; ``job_desc``, ``job_rec`` and ``uid`` are the call's, all else the case's."""
    keys = {"job_desc", "job_rec", "uid"}
    single = {"call": call} | {key: case.pop(key) for key in keys & case.keys()}
    (result,) = run_calls(path, [single], **case)
    return result
