"""A gateway as a node of a cluster.

router.py chooses the node of a turn, and is pure; membership.py renews this node's lease and keeps the list of nodes;
placement.py joins these two; routed.py is the worker of all nodes; door.py serves other nodes; node.py puts these
together. Knowledge of other nodes may be stale: it only saves work, and commits are safe without it.
"""
