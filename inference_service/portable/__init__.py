"""An agent as one file: exported by one worker, imported by another that serves the same model.

format     what the file says, and where its tensors are; pure
header     the header's bytes; pure
tensors    tensors of blocks and windows into the file and out of it; pure
spool      private files for what is on its way, bounded
exporting  from the store's files into the file
importing  from the file into the store
"""
