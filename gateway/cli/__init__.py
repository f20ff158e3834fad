"""The `agentmem` command. Commands import of the server what they need by name; see the contracts in pyproject.toml.

main.py           the table of commands
groups.py         imports or runs a command of a table when it is used, and says what to install for it
client.py         a gateway's client: its options, and errors in one line
http.py           a question to a gateway's HTTP door, and its options
text.py           numbers, times and messages for people; tables, JSON and mistakes are in agentmem/console.py
agents.py         `agents`; branches.py and transfers.py have its commands that change or move an agent
chat.py           `chat`; chat_terminal.py: its line editor
serving.py        what `chat --model` needs: a gateway, and the model loaded on it
turns.py          a turn for people
models.py         `models`; model_tables.py: what it shows
keys.py           `keys`; key_places.py: where these are
top.py            `top`
up/               `up`
doctor.py         `doctor`

`run`, `workflows` and `cluster` are in gateway/workflows/cli and gateway/cluster/cli.
"""
