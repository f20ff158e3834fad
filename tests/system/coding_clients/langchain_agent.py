"""A turn of a LangChain agent that has a shell. Usage: langchain_agent.py URL PROMPT.

What was said before is in session.json of the working directory.
"""

import subprocess
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

SESSION = Path("session.json")


@tool
def shell(command: str) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


def main(url: str, prompt: str) -> None:
    model = ChatOpenAI(model="qwen", base_url=f"{url}/v1", api_key=SecretStr("none"), max_retries=0)
    agent = create_agent(model, [shell], system_prompt="You run what the user asks for.")
    said = loads(SESSION.read_text()) if SESSION.exists() else []
    said.append(HumanMessage(prompt))
    state = {}
    for mode, event in agent.stream({"messages": said}, stream_mode=["messages", "values"]):
        if mode == "values":
            state = event
        elif isinstance(event[0], AIMessageChunk):
            print(event[0].text, end="")  # noqa: T201
    SESSION.write_text(dumps(state["messages"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
