"""slicewise.lua under real Lua, with a stub of Slurm's table, and a stand-in for the daemon."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "slurm_plugin" / "slicewise.lua"
RUN_CASE = Path(__file__).with_name("run_case.lua")
ALICE, SLURM_UID, ROOT_UID = 61001, 64030, 0
PARTITIONS = {"cpu": {"flag_default": 0}, "gpu": {"flag_default": 1}}
SUCCESS, DENIED, POLICY = 0, 2002, 2050
UNSET, UNSET_16 = 4294967294, 65534

LUAS = ("lua5.1", "lua5.3", "lua5.4")
"""Those that packages of Slurm link: Debian's, SchedMD's, those of Enterprise Linux."""

Reply = Callable[[dict[str, Any]], bytes | None]


class Daemon:
    """Listens as the daemon does; answers with what ``reply`` says, None is silence.

    Attributes:
        questions: all that were asked, in order.
        connections: how many were opened.
        closes: after each answer.
    """

    def __init__(self, path: Path, reply: Reply, *, closes: bool = False) -> None:
        self.questions: list[dict[str, Any]] = []
        self.connections = 0
        self.closes = closes
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

    def send(self, data: bytes) -> None:
        """Say something on the newest connection."""
        with suppress(OSError):
            self._open[-1].sendall(data)

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
        text = json.dumps({"v": 2, **answer})
        return text.replace("TOKEN", question["token"]).encode() + b"\n"

    return reply


class Interpreter:
    """The Lua that runs the calls: each test runs once under each of ``LUAS`` (conftest.py)."""

    name = LUAS[0]


def run_calls(path: Path, calls: list[dict[str, Any]], **case: Any) -> list[dict[str, Any]]:
    """The calls, one after the other, of one slicewise.lua that asks on that socket."""
    options = {
        "socket": str(path),
        "off_file": str(path.with_name("off")),
        "slurm_uid": SLURM_UID,
        "timeout_s": 0.5,
    }
    options |= case.pop("configure", {})
    whole = {"module": str(MODULE), "configure": options, "part_list": PARTITIONS, **case}
    whole["calls"] = [{"call": "job_submit", "uid": ALICE, **call} for call in calls]
    done = subprocess.run(
        [Interpreter.name, str(RUN_CASE)],
        input=json.dumps(whole, ensure_ascii=False).encode(),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr.decode()
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any(result["read_assoc_qos"] for result in results)
    return results


def run_case(path: Path, call: str = "job_submit", **case: Any) -> dict[str, Any]:
    """One call; ``job_desc``, ``job_rec`` and ``uid`` are the call's, all else the case's."""
    keys = {"job_desc", "job_rec", "uid"}
    single = {"call": call} | {key: case.pop(key) for key in keys & case.keys()}
    (result,) = run_calls(path, [single], **case)
    return result
