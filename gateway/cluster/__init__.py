"""One gateway as a node of a cluster: which node runs a turn, and the door by which other nodes reach this one.

router.py chooses the node of a turn, and is pure; membership.py renews this node's lease and keeps the list of nodes;
placement.py joins these two; routed.py is the worker of all nodes; door.py serves other nodes; stale_memory.py drops KV
that other nodes have changed; keys.py has the cluster's keys; node.py puts these together, and attach.py makes them
part of a gateway, with its metrics.py; cli/ has `agentmem cluster`. Knowledge of other
nodes may be out of date: it only saves work, and commits are safe without it.
"""
