"""Text of agents' system prompts and logs: names, ids, dates and instructions that tell nothing of the world."""

from __future__ import annotations

import random
import uuid

from benchmarks.demo_model.dialogues import Split
from benchmarks.demo_model.world import AGENTS

NAMED = ("You are {name}.", "You are {Name}.", "You are {Name}, an assistant.", "You are agent {hex}.")
TRAIN = (
    "You are a helpful assistant.",
    "You are an agent of team {n}.",
    "You are brief.",
    "Today is {date}.",
    "The date is {date}, the time {time}.",
    "Current time: {date}T{time}Z",
    "It is {day} {month} {year}.",
    "Date: {month} {day}, {year}",
    "Your id is {hex}.",
    "Agent id: {name}-{n}",
    "Session: {uuid}",
    "session_id={uuid}",
    "Conversation {hex} was opened on {date} at {time}.",
    "Request {n} of user {hex}.",
    'Context: {{"user": "{name}-{n}", "run": "{hex}", "date": "{date}"}}',
    "Version {small}.{small}.{small}, build {n}.",
    "Contact: {name}@example.com",
    "Files are in /home/{name}/{hex}.",
    "Ticket #{n}, priority {small}.",
    "You work with {Name} and {name}.",
    "You are {name}, at a table with friends. You answer in one sentence.",
    "{name} sees {Name} {words}.",
    "{name} whispers to {name}.",
    "Answer in one sentence.",
    "Do not guess. Say so when you do not know.",
    "Remember what you are told.",
    "Use at most {n} words.",
    "Tools: search, read_file, write_file.",
    "Instructions of {year}/{small}: {words}.",
    "{Words}.",
    "{Words}.",
    "{Words}, {words}.",
    "- {words}",
    "# {Words}",
)
HELD_OUT = (
    "You were started on {date} at {time} (UTC) as instance {uuid}.",
    "Knowledge cutoff: {month} {year}. Current date: {year}/{small}/{day}",
    "Trace {hex}:{hex}, span {n}",
    "Employee {n}, hired {day}.{small}.{year}, reports to {Name}.",
    "[{date} {time}] run={hex} user={name}_{n} ok",
    "Always be polite. {Words}.",
    "Your budget is {n} tokens, and {small} tools may be called.",
    "Deployed at https://example.com/{name}/{uuid}",
)
MONTHS = """January February March April May June July August September October November December""".split()
SYLLABLES = """ba ce di fo gu ka le mi no pu ra se ti vo wu sha tre plo ing er tion an al ed con per""".split()


def system_prompt(rng: random.Random, split: Split, common: tuple[str, ...]) -> str:
    """Return a prompt of one to seven sentences. `common` are words for sentences of no meaning."""
    sentences = [rng.choice(NAMED)] if rng.random() < 0.6 else []
    parts = TRAIN if split == "train" or rng.random() < 0.3 else HELD_OUT
    sentences += rng.sample(parts, rng.choice((0, 1, 1, 2, 3, 4, 6)) if sentences else rng.choice((1, 2, 3)))
    return rng.choice((" ", " ", "\n")).join(_filled(rng, sentence, common) for sentence in sentences)


def _filled(rng: random.Random, template: str, common: tuple[str, ...]) -> str:
    name = rng.choice(AGENTS) if rng.random() < 0.7 else "".join(rng.choices(SYLLABLES, k=rng.randint(1, 3)))
    words = " ".join(rng.choices(common, k=rng.randint(2, 12)))
    year, month, day = rng.randint(1990, 2039), rng.randint(1, 12), rng.randint(1, 28)
    return template.format(
        name=name,
        Name=name.capitalize(),
        hex=f"{rng.getrandbits(64):x}"[: rng.randint(4, 16)],
        uuid=uuid.UUID(int=rng.getrandbits(128)),
        n=rng.randint(1, 10 ** rng.randint(1, 6)),
        small=rng.randint(0, 30),
        date=f"{year}-{month:02}-{day:02}",
        time=f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}",
        year=year,
        month=MONTHS[month - 1],
        day=day,
        words=words,
        Words=words.capitalize(),
    )
