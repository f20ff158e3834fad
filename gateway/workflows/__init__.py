"""Workflows: agents that speak in phases, and keep their memories from phase to phase.

Each agent's ledger gets exactly what that agent saw, in that order, so every turn is an EXTEND. Where to read:

    definition/      the file
    topology.py      who speaks when and to whom, and who hears it
    inboxes.py       what agents have heard and not read yet
    outcomes.py      structured results
    program.py       what happens next; pure
    task_runner.py   turns and listenings, done by worker.py
    run.py           a run: the program, executed; its events: event_log.py
    records.py       runs as the store keeps them
    runs.py          runs as callers have them; those that go on here: live.py
    attendance.py    runs whose gateway is gone

Runs are event-sourced: a resumed run is executed from its beginning with the turns of its record.
"""
