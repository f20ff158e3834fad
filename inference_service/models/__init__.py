"""Models: registration, loading, and serving.

serving.py      use of models, and waiting for them
swapping.py     loading wanted models and unloading others; slots.py: their states
loading.py      the steps of a load; loaded.py: its results
opening.py      a model without its weights; chat_format.py: its template and tags; sampling_defaults.py
capability.py   whether its layers can run over quantized KV; probing.py and proof.py: how that is tried
kv_setup.py     how its KV is packed
sources.py      from a hub to a directory; weight_files.py
fingerprint.py  names of everything that makes KV compatible
costs.py, fitting.py, latents.py   memory of computing, memory of the device, latent attention
"""
