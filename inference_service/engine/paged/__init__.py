"""KV in the pool's blocks, where running sequences write and read it: no sequence has buffers of its own."""
