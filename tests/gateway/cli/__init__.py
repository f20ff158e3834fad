"""The `agentmem` command."""
