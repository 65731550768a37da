"""Answers as SGLang's server does, without SGLang: written from the source of 0.5.23.

    python3 sglang_stand_in.py serve --model-path M ... (the options that a batch script gives)

What it has of SGLang: the options and what they change; ``/ready``, which says 503 until it is
warm; ``/model_info`` with the version of the weights; ``/v1/models``; completions and their
streams, with ``usage`` at the end of each where that is set; its form of an error; ``/metrics``
where that is enabled, in chunks, as uvicorn sends what says no length; LoRA adapters, which are
loaded, unloaded, and asked for by a model with a colon; that it listens on TCP only, and that INT
ends it. A token takes a while.
"""

import argparse
import json
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WARM_UP_S, TOKEN_S = 0.3, 0.01


class Times:
    """A histogram's sum and count, and of the times to first tokens its buckets."""

    BOUNDS_S = (
        *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0),
        *(200.0, 400.0, float("inf")),
    )

    def __init__(self) -> None:
        self.sum_s, self.count = 0.0, 0
        self.upto = dict.fromkeys(self.BOUNDS_S, 0)

    def add(self, seconds: float) -> None:
        self.sum_s, self.count = self.sum_s + seconds, self.count + 1
        for bound_s in self.BOUNDS_S:
            self.upto[bound_s] += seconds <= bound_s


class State:
    """What the server has: its options, and what it works on."""

    def __init__(self, told: argparse.Namespace) -> None:
        self.told = told
        self.adapters: dict[str, str] = {}
        self.warm_s = time.monotonic() + WARM_UP_S
        self.places = threading.Semaphore(told.max_running_requests)
        self.running = 0
        self.waiting = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.first = Times()
        self.between = Times()


class Handler(BaseHTTPRequestHandler):
    """One connection, kept as uvicorn does."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: Any) -> None:
        """Say nothing: --log-level-http warning."""

    def do_GET(self) -> None:
        told = self.state.told
        match self.path:
            case "/ready":
                self._answer(200 if time.monotonic() > self.state.warm_s else 503, b"")
            case "/health" | "/health_generate":
                time.sleep(1)
                self._answer(200, b"")
            case "/model_info":
                names = {"model_path": told.model_path, "served_model_name": told.served_model_name}
                self._json(200, {**names, "weight_version": told.weight_version})
            case "/v1/models":
                card = {"id": told.served_model_name, "object": "model", "owned_by": "sglang"}
                adapters = [
                    card | {"id": name, "root": path, "parent": told.served_model_name}
                    for name, path in self.state.adapters.items()
                ]
                self._json(200, {"object": "list", "data": [card, *adapters]})
            case "/metrics" if told.enable_metrics:
                self._begin("text/plain; version=0.0.4; charset=utf-8")
                self._piece(self._metrics().encode())
                self._end()
            case _:
                self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self._body()
        if self.path in {"/load_lora_adapter", "/unload_lora_adapter"}:
            self._adapt(json.loads(body))
        elif self.path != "/v1/completions":
            self._json(404, {"detail": "Not Found"})
        elif self.headers.get("content-type", "").partition(";")[0] != "application/json":
            self._refuse("Unsupported Media Type: Only 'application/json' is allowed")
        elif not isinstance((asked := json.loads(body)).get("prompt"), str):
            self._refuse("prompt: Input should be a valid string")
        elif (name := _adapter_of(asked)) and name not in self.state.adapters:
            self._refuse(f"The following requested LoRA adapters are not loaded: {{'{name}'}}")
        else:
            self._complete(asked)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        pieces = list[bytes]()
        while length := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _adapt(self, asked: dict[str, Any]) -> None:
        """Load an adapter, of which only its configuration is read, or unload it."""
        adapters, name, path = self.state.adapters, asked["lora_name"], asked.get("lora_path")
        wrong = ""
        if not self.state.told.enable_lora:
            wrong = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
        elif path is None:
            wrong = (
                "" if adapters.pop(name, None) else f"LoRA adapter with name {name} does not exist."
            )
        elif name in adapters:
            wrong = f"Failed to load LoRA adapter {name} because it is already loaded"
        elif not (config := Path(path, "adapter_config.json")).is_file():
            wrong = f"Can't find 'adapter_config.json' at '{path}'"
        elif json.loads(config.read_text())["r"] > self.state.told.max_lora_rank:
            wrong = f"LoRA adapter {name} is not compatible with the current LoRA memory pool"
        else:
            adapters[name] = path
        self._json(400 if wrong else 200, {"success": not wrong, "error_message": wrong or None})

    def _complete(self, asked: dict[str, Any]) -> None:
        state = self.state
        state.waiting += 1
        with state.places:
            state.waiting -= 1
            state.running += 1
            try:
                (self._stream if asked.get("stream") else self._whole)(asked)
            except OSError:
                self.close_connection = True
            finally:
                state.running -= 1

    def _whole(self, asked: dict[str, Any]) -> None:
        for number in range(asked["max_tokens"]):
            self._token(number)
        text = {"index": 0, "text": "x" * asked["max_tokens"], "finish_reason": "length"}
        self._json(200, self._event([text]) | {"usage": self._usage(asked["max_tokens"])})

    def _stream(self, asked: dict[str, Any]) -> None:
        self._begin("text/event-stream; charset=utf-8")
        count = asked["max_tokens"]
        for number in range(count):
            self._token(number)
            reason = "length" if number == count - 1 else None
            self._chunk(self._event([{"index": 0, "text": "x", "finish_reason": reason}]))
        if self.state.told.stream_response_default_include_usage:
            self._chunk(self._event([]) | {"usage": self._usage(count)})
        self._chunk("[DONE]")
        self._end()

    def _token(self, number: int) -> None:
        time.sleep(TOKEN_S)
        self.state.generation_tokens += 1
        (self.state.between if number else self.state.first).add(TOKEN_S)

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        model = self.state.told.served_model_name
        return {"id": "1", "object": "text_completion", "model": model, "choices": choices}

    def _usage(self, tokens: int) -> dict[str, int]:
        self.state.prompt_tokens += 1
        return {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}

    def _chunk(self, event: object) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        self._piece(f"data: {text}\n\n".encode())

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _piece(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, message: str) -> None:
        self._json(400, {"object": "error", "message": message, "type": "Bad Request", "code": 400})

    def _json(self, status: int, said: object) -> None:
        self._answer(status, json.dumps(said).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _metrics(self) -> str:
        state = self.state
        figures = {
            "num_running_reqs": state.running,
            "num_queue_reqs": state.waiting,
            "token_usage": 0.0,
            "num_retracted_requests_total": 0.0,
            "prompt_tokens_total": state.prompt_tokens,
            "generation_tokens_total": state.generation_tokens,
            "time_to_first_token_seconds_sum": state.first.sum_s,
            "time_to_first_token_seconds_count": float(state.first.count),
            "inter_token_latency_seconds_sum": state.between.sum_s,
            "inter_token_latency_seconds_count": float(state.between.count),
        }
        labels = f'model_name="{state.told.served_model_name}",tp_rank="0"'
        lines = [f"sglang:{name}{{{labels}}} {value}\n" for name, value in figures.items()]
        for bound_s, count in state.first.upto.items():
            le = "+Inf" if bound_s == float("inf") else bound_s
            bucket = f'sglang:time_to_first_token_seconds_bucket{{le="{le}",{labels}}}'
            lines.append(f"{bucket} {float(count)}\n")
        return "".join(lines)


def _adapter_of(asked: dict[str, Any]) -> str:
    """What stands behind the first colon of the model; "" for the base."""
    return str(asked.get("model", "")).partition(":")[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("serve", choices=["serve"])
    for text in ("--model-path", "--served-model-name", "--weight-version", "--host"):
        parser.add_argument(text, required=True)
    for number in ("--port", "--max-running-requests", "--tp-size", "--pp-size"):
        parser.add_argument(number, type=int, required=True)
    for number in ("--max-lora-rank", "--max-loras-per-batch"):
        parser.add_argument(number, type=int)
    parser.add_argument("--lora-target-modules", choices=["all"])
    flags = ("--enable-metrics", "--stream-response-default-include-usage", "--enable-lora")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    for text in ("--log-level-http", "--config"):
        parser.add_argument(text)
    return parser


class Server(ThreadingHTTPServer):
    """As many connections as come."""

    daemon_threads = True
    request_queue_size = 256
    address_family = socket.AF_INET


def main(words: list[str]) -> None:
    told = _parser().parse_args(words)
    Handler.state = State(told)
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    sys.stdout.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] server_args={told}\n")
    sys.stdout.flush()
    Server((told.host, told.port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
