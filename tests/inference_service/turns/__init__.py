"""Tests of `inference_service.turns`."""
