"""The demo and the benchmarks, which measure the figures of README and docs.

__main__.py     `agentmem bench NAME`; report.py writes RESULTS.md
users wait for  ttft/, work.py, restart.py, at_rest.py, swap.py, peers/, working_memory/, cluster/
it rests on     engine.py (contestants.py, mlx_lm_contestants.py, places.py, loading.py), store/,
                memory.py, quality/, speculation.py (speculation_requests.py), page.py (page_cache.py, page_views.py)
models          models.py (`--model`), smollm2.py, gemma3.py, gguf_float32.py, random_models.py, packages.py (fetched),
                user_cache.py
they share      live.py (`agentmem up`), nodes.py (its services), children.py (processes), ports.py, proxy.py; turns.py
                (checked turns), prompts.py, known_agents.py; options.py, results.py, tables.py, intervals.py

demo.py is `make demo`; demo_model/ has the world that the demo model knows.
"""
