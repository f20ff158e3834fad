"""Agentmem beside other servers over the same weights, all driven by one client over OpenAI's API.

servers.py     how each server is started, awaited, killed and started again
weights.py     the same model as each of them reads it
client.py      one streamed chat completion by its client's clock, and what was wrong with it
scenarios.py   what is asked: the four scenarios
command.py     the command line, and who has its turn when
report.py      medians, ratios, and tables
"""
