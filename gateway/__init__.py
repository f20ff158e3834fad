"""The gateway: gRPC on TCP, HTTP in the dialects of known SDKs, workflows, and the `agentmem` command.

It keeps nothing and knows only the contract. Import contracts in pyproject.toml hold the server's layers:

    app.py           the process: composes what follows, listens, drains
    http/            the HTTP server: routes, middleware, turns, REST, the OpenAPI document
    grpc/            the gRPC server: RPCs of the contract, forwarded by their descriptors
    agent_finder.py  which agent a request means, where it does not say
    worker.py        the worker as all of the server calls it: a port; in front of it:
    running.py       the turns that have been sent to a worker and have not ended
    peers.py         whether worker and store serve, for /readyz, health and metrics
    upstream.py      the port over a channel, and failures of calls as our errors
    metrics.py       what the servers count
    scraping.py      reads another process's page of metrics; pages.py: such a page and its growth
    settings.py      settings, some of which `agentmem up` has, too
    edge/            callers and their rights: keys, TLS, admission, namespaces, redaction
    api/             the dialects as pure translation
    ui/              the page at /ui/
    cli/             the `agentmem` command

Two packages are rings around this core, which is whole without them. rings.py finds those that are installed, and they
attach themselves to the gateway (extension.py) and to the command:

    cluster/         a gateway among others: which node has an agent's turn, the worker of all nodes, their door
    workflows/       multi-agent workflows: their files, and their runs
"""
