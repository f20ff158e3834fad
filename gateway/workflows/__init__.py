"""Workflows: agents that speak in phases, and keep their memories from phase to phase.

Each agent's ledger gets exactly what that agent saw, in that order, so every turn is an EXTEND. Where to read:

    definition/      the file: schema, parser, templates, checks
    topology.py      who speaks when and to whom, and who hears it
    inboxes.py       what agents have heard and not read yet
    outcomes.py      structured results, read from what was said
    program.py       what happens next, a pure function of the definition and of what was said
    worker.py        turns and listenings as requests to the worker
    task_runner.py   the tasks of a run's agents, each done once and in order
    run.py           a run: the program, executed and recorded
    event_log.py     its events, with the sums of totals.py
    records.py       runs as the store keeps them
    live.py          the runs that go on here
    runs.py          runs as callers have them
    attendance.py    whose runs have no gateway
    servicer.py      the RPCs; attach.py makes them part of a gateway
    cli/             `agentmem run` and `agentmem workflows`

Runs are event-sourced: a resumed run is executed from its beginning with the turns of its record.
"""
