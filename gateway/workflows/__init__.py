"""Workflows: agents that speak in phases, and keep their memories from phase to phase.

Each agent's ledger gets exactly what that agent saw, in that order, as appends: so every turn is an EXTEND, and what is
private to one agent never enters another's ledger. Where to read:

    definition/      the file: its schema, its parser, which knows lines, its templates and checks
    topology.py      who speaks when and to whom, and who hears it
    inboxes.py       what agents have heard and not read yet
    outcomes.py      structured results, read from what was said
    program.py       what happens next, as a pure function of the definition and of what was said so far
    worker.py        turns and listenings as requests to the worker; tried again through an outage
    task_runner.py   the tasks of a run's agents, each done once and in order
    run.py           a run: the program, executed and recorded
    event_log.py     its events: durable before they are sent
    totals.py        sums over them
    records.py       runs as the store keeps them
    live.py          the runs that go on here: how one begins and ends
    runs.py          runs as callers have them: begun, joined, resumed, taken over, cancelled
    servicer.py      the RPCs; attach.py makes them part of a gateway, with its metrics.py
    cli/             `agentmem run` and `agentmem workflows`

Runs are event-sourced: a resumed run is executed from its beginning with the turns of its record; the others have
request_ids that follow from their place in the program, and the worker replays those that were committed.
"""
