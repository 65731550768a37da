"""The server of a toy engine: a few paths of OpenAI's API, and ranks that find each other.

Rank 0 answers clients once all others have come to it. The others do nothing, and notice neither a
signal to end nor the end of rank 0. It runs as a job of a user, with Python alone.
"""

import argparse
import json
import os
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

JOINED = threading.Event()


class Handler(BaseHTTPRequestHandler):
    told: argparse.Namespace
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": self.told.alias, "tags": [self.told.tags]}]})
        else:
            self._answer(200 if JOINED.is_set() else 503, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200 if JOINED.is_set() else 503, {"ranks": self.told.ranks})

    def _answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def say(told: argparse.Namespace) -> None:
    names = ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "VLLM_HOST_IP", "NCCL_SOCKET_IFNAME")
    said = {name: os.environ.get(name, "") for name in names} | {"pid": os.getpid()}
    place = Path(os.environ["TOY_SAYS"]) / f"{told.tags}.{told.rank}"
    new = place.with_suffix(f".{told.rank}.new")
    new.write_text(json.dumps(said | {"tmp": os.environ["TMPDIR"]}))
    new.rename(place)


def join(leader: "tuple[str, int]") -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.environ["TOY_JOINS"] == "no":
        signal.pause()
    while True:
        try:
            joined = socket.create_connection(leader)
            break
        except OSError:
            time.sleep(0.1)
    while joined:
        signal.pause()


def gather(leader: "tuple[str, int]", count: int) -> None:
    listener = socket.create_server(leader)
    there = [listener.accept() for _ in range(count)]
    JOINED.set()
    while there:
        signal.pause() if threading.current_thread() is threading.main_thread() else time.sleep(60)


def main() -> None:
    parser = argparse.ArgumentParser()
    for text in ("--alias", "--tags", "--host", "--leader"):
        parser.add_argument(text, default="")
    for number in ("--rank", "--ranks"):
        parser.add_argument(number, type=int, default=0)
    told = parser.parse_args()
    say(told)
    address, _, port = told.leader.partition(":")
    if told.rank:
        join((address, int(port)))
    elif told.ranks > 1:
        leader = (address, int(port))
        threading.Thread(target=gather, args=(leader, told.ranks - 1), daemon=True).start()
    else:
        JOINED.set()
    Handler.told = told
    Server(told.host, Handler).serve_forever()


if __name__ == "__main__":
    main()
