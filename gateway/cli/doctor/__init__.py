"""`agentmem doctor`: whether this machine and these settings can run Agentmem, and what to do where they cannot.

Each service checks its own things in a process of its own (`agentmem.process.checkup`), so that no service imports
another and a check that hangs can be ended. command.py runs these processes, and shows what they found; checks.py
is the gateway's, `python -m gateway.cli.doctor.checks`.
"""
