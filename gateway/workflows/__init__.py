"""Workflows: agents that speak in phases, and keep their memories from phase to phase.

Each agent's ledger gets exactly what that agent saw, in that order, so every turn is an EXTEND. Where to read:

    definition/      the file: schema, parser, templates, checks
    topology.py      who speaks when and to whom, and who hears it
    inboxes.py       what agents have heard and not read yet
    outcomes.py      structured results
    program.py       what happens next; pure
    worker.py        requests to the worker
    task_runner.py   the tasks of a run's agents
    run.py           a run: the program, executed and recorded
    event_log.py     its events
    records.py       runs as the store keeps them
    live.py          the runs that go on here
    runs.py          runs as callers have them
    attendance.py    runs whose gateway is gone
    servicer.py      the RPCs

Runs are event-sourced: a resumed run is executed from its beginning with the turns of its record.
"""
