"""Models on a hub: `agentmem models search` and `pull`, run as `python -m inference_service.hub`."""
