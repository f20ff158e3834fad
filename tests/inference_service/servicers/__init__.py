"""Tests of `inference_service.servicers`."""
