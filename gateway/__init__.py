"""The gateway: gRPC on TCP, HTTP in the dialects of known SDKs, workflows, and the `agentmem` command.

It keeps nothing and knows only the contract. Import contracts in pyproject.toml hold the layers:

    app.py           the process
    http/            the HTTP server: middleware, turns, REST, the OpenAPI document
    grpc/            the gRPC server
    agent_finder.py  which agent a request means, where it does not say
    worker.py        the worker as a port; running.py: its turns that go on; upstream.py: it over a channel
    peers.py         whether worker and store serve
    metrics.py       what the servers count
    scraping.py      reads another process's metrics, and how they grow
    settings.py      settings, some of which `agentmem up` has, too
    edge/            callers and their rights
    api/             the dialects as pure translation
    ui/              the page at /ui/
    cli/             the `agentmem` command

Two packages are rings around this core: rings.py finds those that are installed, and they attach themselves to the
gateway (extension.py) and to the command:

    cluster/         a gateway among others: which node has an agent's turn, the worker of all nodes, their door
    workflows/       multi-agent workflows: their files, and their runs
"""
