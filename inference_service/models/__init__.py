"""Models: registration, loading, and serving.

serving.py      use of models; swapping.py: loads and unloads; slots.py: states
loading.py      steps of a load; loaded.py: results; measuring.py: between turns
finding.py      fetches, opens and fits models
opening.py      a model without weights; chat_format.py, sampling_defaults.py
capability.py   judges layers; probing.py, proof.py: how; proofs.py remembers
kv_setup.py     packing of KV; fingerprint.py: names of compatible KV
sources.py, weight_files.py        from a hub to a directory; pulled.py: what stays registered
costs.py, fitting.py, latents.py   memory, latent attention; wiring.py, pressure.py: on Macs
"""
