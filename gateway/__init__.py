"""The gateway: gRPC on TCP, HTTP in the dialects of known SDKs, workflows, and the `agentmem` command.

A gateway keeps nothing of its own and knows only the contract: what it answers about agents and models it has from the
worker, and its workflow runs are in the store. Import contracts in pyproject.toml hold the layers of the server:

    app.py           the process: composes what follows, listens, drains
    http/            the HTTP server: routes, middleware, running turns, REST, the OpenAPI document
    grpc/            the gRPC server: any RPC of the contract, forwarded by its descriptor
    agent_finder.py  which agent a request means, where it does not say
    worker.py        the worker as all of the server calls it: a port; in front of it:
    running.py       the turns that have been sent to a worker and have not ended
    peers.py         whether worker and store serve, for /readyz, health and metrics
    upstream.py      the port over a channel, and failures of calls as our errors
    metrics.py       what the servers count
    scraping.py      reading another process's page of metrics; pages.py: such a page, and how much it grows
    settings.py      settings of the process; those that `agentmem up` has, too
    edge/            who is calling, and what they may: keys, TLS, admission, namespaces, redaction
    api/             the dialects as pure translation: requests to turns, events to answers, errors to pages
    ui/              the page at /ui/, as files that the browser takes as they are
    cli/             the `agentmem` command

Two packages are rings around this core, which imports neither and is whole without them. Where one is installed,
rings.py finds it, and it makes itself a part of the gateway (extension.py) and of the command:

    cluster/         a gateway among others: which node has an agent's turn, the worker of all nodes, their door
    workflows/       multi-agent workflows: their files, and their runs
"""
