"""The doors of Agentmem: gRPC on TCP, HTTP in the dialects of known SDKs, and the `agentmem` command.

A gateway keeps no state and knows only the contract: whatever it tells a caller it has from the worker. Where to read:

    __main__.py       the process
    settings.py       its settings
    process.py        both doors in one event loop, from listening to draining
    upstream.py       calls to the worker: failures as our errors, streams read ahead into a bounded queue
    forwarding.py     the gRPC door: any RPC of the contract, forwarded by its descriptor
    namespaces.py     whose memory a request may name
    callers.py        who is calling
    identity.py       whose memory a request means, where it does not say
    exchange.py       what a dialect makes of a request
    choices.py        the turns of one request, run
    json_body.py      bodies of requests, read and refused by field; what they are made of: fields.py
    memory_report.py  what a turn tells of the agent's memory, as JSON; of a model: model_report.py
    metrics.py        what the doors count
    http/             the HTTP door: routes, error pages, server-sent events
    openapi/          the OpenAPI document of the HTTP door
    openai/           OpenAI's dialect, as pure translation
    anthropic/        Anthropic's dialect, as pure translation
    rest/             REST for agents, transcoded from the contract
    cli/              the `agentmem` command
"""
