"""Serves metrics of daemon and launcher to Prometheus, by HTTP."""

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.metric_catalogue import MetricSpec

# A series of its own for each counter, with when it began: no page and no rule names them.
disable_created_metrics()  # type: ignore[no-untyped-call]

_CONNECTIONS = 8
_SILENCE_S = 5.0


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- as its base has it
        """Log no request."""


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread of its own, and few at a time.

    Any user of the host may connect, and silent clients must take neither memory nor file
    descriptors of the program. So if there are too many connections, the oldest one is closed.
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
        """Bind as the base class does, but without asking DNS for the host's name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; cut off the oldest one if there are too many."""
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= _CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                # Its thread still has the connection, and closes it.
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended, whichever side ended it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a client that goes away in the middle is no news."""


@contextmanager
def served(registry: CollectorRegistry, address: str, key: str) -> Iterator[None]:
    """Answer Prometheus at HOST:PORT, in a thread of its own; do nothing if ``address`` is empty.

    ``key`` is the address's name in slicewise.toml. Raises SlicewiseError (SW-SETTINGS) if the
    program can't listen at the address.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = _Server(host.strip("[]"), int(port), registry)
    except (OSError, ValueError, OverflowError) as error:
        raise SlicewiseError(
            Code.SETTINGS,
            f"{key}: can't listen on {address!r}: {error}.",
            "Write HOST:PORT of this host, with a port that is not in use.",
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def family(spec: MetricSpec, values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """A gauge or counter with these values, each beside what its labels say."""
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    metric = kind(spec.name, spec.text, labels=spec.labels)
    for labels, value in values:
        metric.add_metric(labels, value)
    return metric


def single(spec: MetricSpec, value: float) -> Metric:
    """A gauge or counter without labels."""
    return family(spec, [((), value)])
