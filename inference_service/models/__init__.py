"""Models: which there are, how one is loaded, and which serve. Where to read:

serving.py      who uses which model, and who waits for one
swapping.py     how what is wanted comes, and what goes to make room for it; `slots` has the states
loading.py      the way of a load: which step runs when, each on the thread where it belongs
loaded.py       what an opened and a loaded model are, and the steps that make the one of the other
opening.py      a directory looked at, without its weights in memory; `chat_format` is its template and tags
kv_setup.py     how a model's KV is packed: the means that it is centred on, and its bits
capability.py   whether its layers can run over quantized KV, and what to do where they cannot
sources.py      the registered models, and the way from a hub to a directory
hub_cache.py    whether a model is whole in the hub's local cache
weight_files.py the files of weights: which a download lacks
fingerprint.py  the name of all that makes KV compatible
costs.py        what computing takes, by the shapes of a network
fitting.py      the arithmetic of the device's memory: contexts, agents, which models fit, and which go; pure
"""
