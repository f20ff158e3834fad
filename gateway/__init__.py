"""The doors of Agentmem: gRPC on TCP, HTTP in the dialects of known SDKs, and the `agentmem` command.

A gateway keeps nothing of its own and knows only the contract: what it tells a caller of agents and models it has from
the worker, and what it knows of workflow runs is in the store. Where to read:

    __main__.py       the process
    settings.py       its settings; door_settings.py has those that `agentmem up` has, too
    process.py        both doors in one event loop, from listening to draining
    upstream.py       calls to the worker and the store: failures as our errors, streams read ahead into a bounded queue
    peers.py          how those two are, for /readyz, health and metrics
    retries.py        calls that are tried again through an outage
    forwarding.py     the gRPC door: any RPC of the contract, forwarded by its descriptor
    callers.py        who is calling; authentication.py asks it at the gRPC door
    keys/             the keys that callers show, and the file of them
    admission.py      how much one caller may ask for, and the end of what a revoked one has running
    tls.py            certificates at both doors, renewed while it runs
    credential_files.py  whether the files of keys and TLS that the settings name can be used
    namespaces.py     whose memory a request may name
    identity.py       whose memory a request means, where it does not say
    exchange.py       what a dialect makes of a request
    choices.py        the turns of one request, run
    json_body.py      bodies of requests, read and refused by field; what they are made of: fields.py
    enums.py          names of the contract's enum values in JSON
    memory_report.py  what a turn tells of the agent's memory, as JSON; of a model: model_report.py
    finish_reasons.py why a turn ended, in words
    metrics.py        what the doors count; peers.py asks the processes behind them whether they serve
    openapi/          the OpenAPI document of the HTTP door
    http/             the HTTP door: routes, limits, error pages, server-sent events
    openai/           OpenAI's dialect, as pure translation
    anthropic/        Anthropic's dialect, as pure translation
    rest/             REST for agents, transcoded from the contract
    workflows/        multi-agent workflows: their files, and their runs
    cli/              the `agentmem` command
"""
