"""Tests of `inference_service.memory`."""
