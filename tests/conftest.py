"""Hypothesis profiles; that this file is here also lets tests import modules beside it."""

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("default", deadline=None, suppress_health_check=_SLOW)
settings.register_profile(
    "nightly", deadline=None, max_examples=10_000, suppress_health_check=_SLOW
)
settings.load_profile("default")
