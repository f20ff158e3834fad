"""Programs behind the figures: the demo, the benchmarks, and the demo model's training.

__main__.py     `agentmem bench NAME`; series.py is `bench all`; report/ writes RESULTS.md
users wait for  ttft/, work.py, restart.py, at_rest.py, break_even.py, swap.py, peers/, working_memory/, cluster/
it rests on     engine.py (contestants.py, places.py), store/, restoring.py, memory.py, quality/, speculation/, page.py
they share      live.py (`agentmem up`), children.py (processes), turns.py (a checked turn), prompts.py,
                conversations.py, known_agents.py, models.py (`--model`), packages.py (fetched), results.py, tables.py

demo.py is `make demo`; demo_model/ makes the demo model.
"""
