"""Reads by NVIDIA's management library what a board has taken, and how busy its instances were.

NVML is open (``nvml.opened``). From Hopper on the driver samples the performance monitors (GPM).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pynvml as nv

from slicewise.cluster.language.gpus.inventory import Gpu

_PPM_OF_PERCENT = 10_000


class Activity:
    """How busy each instance was between two looks, where NVIDIA's driver says it."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], Any] = {}
        self._ppm: dict[tuple[str, int], int] = {}

    def ppm(self, gpu_uuid: str, gi_id: int) -> int | None:
        """Millionths of the instance's processors; None if it is not known."""
        return self._ppm.get((gpu_uuid, gi_id))

    def look(self, gpus: Sequence[Gpu]) -> None:
        """Take a sample of each instance, and compare it with the one before."""
        before, self._samples, self._ppm = self._samples, {}, {}
        for gpu in gpus:
            for instance in gpu.instances:
                key = gpu.uuid, instance.gi_id
                with suppress(nv.NVMLError):
                    self._samples[key] = _sample(*key)
                    if key in before:
                        self._ppm[key] = _busy_ppm(before[key], self._samples[key])
        for sample in before.values():
            with suppress(nv.NVMLError):
                nv.nvmlGpmSampleFree(sample)


def _sample(gpu_uuid: str, gi_id: int) -> Any:
    sample = nv.nvmlGpmSampleAlloc()
    try:
        nv.nvmlGpmMigSampleGet(nv.nvmlDeviceGetHandleByUUID(gpu_uuid), gi_id, sample)
    except nv.NVMLError:
        nv.nvmlGpmSampleFree(sample)
        raise
    return sample


def _busy_ppm(before: Any, after: Any) -> int:
    asked = nv.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = nv.NVML_GPM_METRIC_SM_UTIL
    nv.nvmlGpmMetricsGet(asked)
    if asked.metrics[0].nvmlReturn != nv.NVML_SUCCESS:
        raise nv.NVMLError(asked.metrics[0].nvmlReturn)
    percent = float(asked.metrics[0].value)
    if math.isnan(percent):
        raise nv.NVMLError(nv.NVML_ERROR_NO_DATA)
    return round(min(max(percent, 0.0), 100.0) * _PPM_OF_PERCENT)


def counter_mj(gpu: Gpu) -> int | None:
    """Millijoules since the driver was loaded; None where the board does not count."""
    try:
        handle = nv.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return int(nv.nvmlDeviceGetTotalEnergyConsumption(handle))
    except nv.NVMLError:
        return None
