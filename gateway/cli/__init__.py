"""The `agentmem` command.

main.py           the table of commands
habits.py         commands of Ollama, LM Studio and vLLM
groups.py         lazy imports, and missing packages
client.py         a gateway's client, its options and errors
http.py           a request to a gateway's HTTP API, and its options
text.py           numbers, times and messages
live_line.py      a terminal's line that changes in place; loading.py: a model's load in it
agents.py         `agents`, with branches.py and transfers.py
chat.py           `chat`; chat_terminal.py: its line editor; serving.py: its gateway and model; turns.py: its lines
models.py         `models`
keys.py           `keys`, with key_places.py
launch/           `launch`
top.py, up/, doctor.py, bench/

`run`, `workflows` and `cluster` are in gateway/workflows/cli and gateway/cluster/cli.
"""
