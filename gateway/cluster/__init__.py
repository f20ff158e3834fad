"""One gateway as a node of a cluster: which node runs a turn, and the door by which other nodes reach this one.

router.py says where a turn should run, and is pure; membership.py keeps this node among the others, and their list;
nodes.py has a channel to each; channel.py is what the doors are given in place of the worker's channel; calls.py makes
one call on one node after the other; door.py serves other nodes; node.py puts these together. All that is known of
other nodes may be out of date: it saves work, and what is committed is safe without it.
"""
