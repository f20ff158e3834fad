"""`agentmem doctor`: whether this machine and these settings can run Agentmem well, and what to do where they cannot.

Each package looks at its own things, in a process of its own, which says line by line what it found
(`agentmem.checkup`): so nothing imports another service, and what hangs is ended.

command.py       the command: all halves after one another, then the answer
halves.py        a half as a process, and the limits on it
here/            the gateway's half: settings, versions, run directory, ports, what runs already
together.py      what only two halves together can tell; pure
report.py        the findings for people, and for machines

The other halves are `cache_service.doctor` and `inference_service.doctor`.
"""
