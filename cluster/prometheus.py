"""What Prometheus may read of daemon and launcher, by HTTP."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric

from cluster.errors import SlicewiseError

_CONNECTIONS = 8
_SILENCE_S = 5.0


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- as its base has it
        """Logs no request."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few: anybody on the host may connect, and
    who is silent must take neither memory nor file descriptors of the program. The oldest goes.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family = family
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def server_bind(self) -> None:
        """As its base, but for asking DNS who it is."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Cuts off the oldest connection if there are too many."""
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= _CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                # Its thread has it still, and closes it.
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """At the end of a connection, whoever ended it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes away in the middle is no news."""


@contextmanager
def served(registry: CollectorRegistry, address: str, key: str) -> Iterator[None]:
    """Answer Prometheus at HOST:PORT, in a thread of its own; nowhere if it is empty.

    ``key`` is the address's in slicewise.toml. Raises SlicewiseError (SW-METRICS) if the address
    can't be had.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = _Server(host.strip("[]"), int(port), registry)
    except (OSError, ValueError, OverflowError) as error:
        raise SlicewiseError(
            "SW-METRICS",
            f"{key}: can't listen on {address!r}: {error}.",
            "Write HOST:PORT of this host, with a port that nobody uses.",
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def gauge(name: str, text: str, value: float) -> Metric:
    """One value without labels."""
    return GaugeMetricFamily(name, text, value=value)
