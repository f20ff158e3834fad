"""One gateway as a node of a cluster: which node runs a turn, and the door by which other nodes reach this one.

router.py chooses the node of a turn, and is pure; membership.py renews this node's lease and keeps the list of nodes;
nodes.py has a channel to each node; placement.py joins these three; channel.py is a channel that routes calls, used by
the HTTP and gRPC servers instead of the worker's channel; calls.py makes one call on one node after the other; door.py
serves other nodes; stale_memory.py drops KV that other nodes have changed; keys.py has the cluster's keys; node.py puts
these together. What is known of other nodes may be out of date. It only saves work: commits are safe without it.
"""
