"""Measurements of models on instances."""

from typing import Any

from slicewise.cluster.language.measurements import Measurement


def a_measurement(**changes: Any) -> Measurement:
    """A steady measurement of bert on a slice by three windows, but for these fields."""
    fields = {
        "model": "bert",
        "board": "A100-80GB",
        "type": "1g.10gb",
        "batch": 1,
        "processes": 1,
        "throughput_mrps": 5_000,
        "latency_us": 10,
        "samples": 3,
        "steady": True,
        "reason": "",
    }
    return Measurement.model_validate(fields | changes)
