"""A gateway as a node of a cluster.

router.py chooses the node of a turn, and is pure; membership.py renews this node's lease; routed.py is the worker of
all nodes; door.py serves them. Knowledge of other nodes may be stale: commits are safe without it.
"""
