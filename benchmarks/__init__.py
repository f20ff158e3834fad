"""Programs behind the figures: the demo, the benchmarks, and the demo model's training. Where to read:

__main__.py         `agentmem bench`: every benchmark by its name; demo.py is `make demo`

what users wait for
    ttft/           first tokens by length: cold, warm, from the disk, hot; beside their parts and mlx-lm
    work.py         agents at work: short turns that come and go, beside the engine alone and mlx_lm.server
    restart.py      all agents answer again after a SIGKILL of everything
    starting.py     from `agentmem up` to the first token; at_rest.py: and what a stack takes that does nothing
    break_even.py   the length from which restoring is worth it
    swap.py         what a model swap costs
    peers/          mlx_lm.server and llama.cpp's server beside agentmem, by one client over OpenAI's API
    cluster/        many nodes: simulated; under faults; commits of their ledgers
    working_memory/ generated workflows: recall, leaks, prefilled tokens
what it rests on
    engine.py       the engine (contestants.py) against mlx-lm (mlx_lm_contestants.py), over geometries.py
    page.py         what the page costs while it is open; page_views.py: what it asks for
    speculation/    guessed tokens: answers that repeat the context, and prose
    store/          the cache store's latencies, memory and files
    restoring.py    files of KV to blocks, beside reading the same bytes
    memory.py       KV bytes and agents in a budget, of real caches and pools
    quality/        what quantized KV costs a real language model; key_outliers.py: where plain 4 bits fail
    architectures/  recall with quantized KV in small models of every architecture
what they share
    live.py         `agentmem up` whose services can be killed; services.py is a store and a worker without a gateway
    children.py     processes that are asked line by line: engine_alone.py, decoding_clients.py, ttft/in_process.py
    turns.py        a turn by its client's clock, and the check that it was what it should be
    prompts.py      prompts of exactly so many tokens
    conversations.py  agents that send all they have said; known_agents.py: agents that append to what is remembered
    loading.py      a model loaded without a worker around it; places.py: blocks and pieces of its KV without a pool
    models.py       where the model of `--model` is; random_models.py writes some of real geometry
    options.py      command lines
    packages.py     files out of public packages, pinned; user_cache.py is where they are kept
    smollm2.py      a real language model out of them; gemma3.py: one with windows; gguf_float32.py: for llama.cpp
    intervals.py    95 % intervals, and correlations
    page_cache.py   files that leave the system's memory
    scraping.py     pages of metrics
    proxy.py        a network between two processes that can be slow, cut or silent
    starts.py       where the time of a start goes
series.py           `agentmem bench all`: what RESULTS.md shows of a machine, one after the other
results.py          what is written: figures with all samples, tables, the machine and the versions
tables.py           tables, for the terminal and the report, and limits that some benchmarks check
report/             RESULTS.md from the tables of all results
demo_model/         the recipe of the demo model, and of its kind in other architectures
"""
