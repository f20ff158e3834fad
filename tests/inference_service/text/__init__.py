"""Tests of `inference_service.text`."""
