"""What Prometheus may read of daemon and launcher, by HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric

from cluster.errors import SlicewiseError


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
        server, _ = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, ValueError, OverflowError) as error:
        raise SlicewiseError(
            "SW-METRICS",
            f"{key}: can't listen on {address!r}: {error}.",
            "Write HOST:PORT of this host, with a port that nobody uses.",
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def gauge(name: str, text: str, value: float) -> Metric:
    """One value without labels."""
    return GaugeMetricFamily(name, text, value=value)
