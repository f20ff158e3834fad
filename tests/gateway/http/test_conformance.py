"""Schemathesis makes requests by the document, right and wrong ones, and holds the answers against it.

The worker is scripted: it is the gateway that is tested here; `tests/system/test_rest.py` has REST on a real stack.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gateway.http.openapi import document

from ..background import Served, served

# Schemathesis has the last type that a discriminator maps to a schema for the only one of that schema.
SCHEMA = schemathesis.openapi.from_dict(
    json.loads(
        json.dumps(document()),
        object_hook=lambda found: {name: value for name, value in found.items() if name != "discriminator"},
    )
)
FULL = bool(os.environ.get("AGENTMEM_FULL_MATRIX"))
SCHEMA.config.phases.coverage.enabled = FULL


@pytest.fixture(scope="module")
def door() -> Iterator[Served]:
    with served(max_body_bytes=1 << 20) as running:
        yield running


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(max_examples=200 if FULL else 8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_operation_does_what_the_document_says(case: schemathesis.Case, door: Served) -> None:
    # What stands around a header's value is none of it: such a request is right, and not wrong as it was meant to be.
    if any(str(value) != str(value).strip() for value in (case.headers or {}).values()):
        return
    # What fits a schema may still be refused: a fork onto itself, a contradiction, a percent sign that encodes nothing.
    case.call_and_validate(base_url=door.url, excluded_checks=[positive_data_acceptance])
