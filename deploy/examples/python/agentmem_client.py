"""A small command line over Agentmem's client.

python agentmem_client.py generate AGENT TEXT | list | fork AGENT NEW | export AGENT FILE | import FILE [AGENT]

Environment: AGENTMEM_ADDRESS, AGENTMEM_MODEL, AGENTMEM_API_KEY (sent as a bearer token), AGENTMEM_CA (a file, for TLS).
"""

import os
import sys

from agentmem import Agent, AgentmemError, Client


def agent(client: Client, name: str) -> Agent:
    return client.agent(name, model=os.environ.get("AGENTMEM_MODEL", ""))


def generate(client: Client, name: str, text: str) -> None:
    with agent(client, name).stream(text, max_tokens=200) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
    answer = stream.answer
    print(f"\n[{answer.memory.reused} tokens from memory; version {answer.version.version}]", file=sys.stderr)


def list_agents(client: Client) -> None:
    for found in client.agents():
        print(found.name, found.model, f"{found.tokens} tokens", sep="\t")


def fork(client: Client, name: str, new: str) -> None:
    info = agent(client, name).fork(new).info()
    print(f"{info.name}: {info.tokens} tokens, version {info.version.version}")


def export(client: Client, name: str, path: str) -> None:
    agent(client, name).export(path)


def import_agent(client: Client, path: str, name: str = "") -> None:
    made = client.import_agent(path, name=name).info
    print(f"{made.name} on {made.model}: {made.tokens} tokens")


COMMANDS = {"generate": generate, "list": list_agents, "fork": fork, "export": export, "import": import_agent}


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(__doc__)
    with Client() as client:
        try:
            COMMANDS[name](client, *arguments)
        except AgentmemError as error:
            sys.exit(f"{error.code.name}: {error.message}")


if __name__ == "__main__":
    main()
