"""Tests of `inference_service.pool`."""
