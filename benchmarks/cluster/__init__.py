"""Several nodes on one ledger.

commits.py commits per second on SQLite and PostgreSQL failover.py a node and the primary are lost, while agents take
turns (`clients.py`) drill.py faults (`faults.py`, `../proxy.py`), while clients ask any node; `history.py` checks their
history scripted_*.py a worker without MLX, whose turns append their request_id; `lists.py` reads them clusters.py,
postgres.py, postgres_pair.py nodes and servers as processes
"""
