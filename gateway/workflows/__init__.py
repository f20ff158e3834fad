"""Workflows: agents that speak in phases, and keep their memories from phase to phase.

A run is the definition, executed. Each agent's ledger gets exactly what that agent saw, in the order in which it saw
it, as appends: so every turn is an EXTEND, and what is private to one agent never enters another's ledger. Where to
read:

    definition/   the file: its schema, its text with line numbers, its templates, and what is wrong with it
    program.py    what happens next, as a pure function of the definition and of what was said so far
    audience.py   who hears what
    hearing.py    what agents have heard and not read yet
    filling.py    what was said, in templates: within bounds
    outcomes.py   structured results, read from what was said
    upcoming.py   who speaks next, and after whom: what prefetches and hints are made of
    requests.py   turns and listenings as requests; telling.py what a run tells as events
    turns.py      one turn, or one listening, on the worker; tried again through an outage
    works.py      the works of a run's agents, each done once and in order
    run.py        a run: the program, executed, recorded and told
    log.py        its events: durable before they are told
    records.py    runs as the store keeps them
    runs.py       the runs that go on here: joined, cancelled, resumed; states.py what a run is
    servicer.py   the RPCs

A run goes on by event sourcing: the program is deterministic, so a run that is resumed is executed from its beginning,
with what its record has of turns that are finished; the others have request_ids that follow from their place in the
program, and the worker replays those that were committed before the record knew.
"""
