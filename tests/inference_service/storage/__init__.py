"""Tests of `inference_service.storage`."""
