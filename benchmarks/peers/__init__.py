"""Agentmem beside other servers over the same weights, all driven by one client over OpenAI's API."""
