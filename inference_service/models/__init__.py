"""Models: which there are, how one is loaded, and which serve. Where to read:

registry.py     those that requests can name, from flags and the registry file
serving.py      who uses which model, and who waits for it with a ticket; `seats` are the models' places
swapping.py     the queue of those that are wanted, and how one makes room for another
residency.py    the arithmetic of the device's memory: who fits beside whom, and who goes; pure
loader.py       the steps of a load, each on the thread where it belongs
fetching.py     from a hub to a directory; `hub_errors` says what to do where that fails
opening.py      a directory looked at, without its weights in memory; refused where it cannot run in Q4
fingerprint.py  the name of all that makes KV compatible
loading.py      the steps themselves: weights read, attention proved, memory taken
"""
