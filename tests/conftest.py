"""Hypothesis without anything that depends on the machine's speed."""

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
