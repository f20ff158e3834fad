"""An agent as one file: exported by one worker, imported by another that serves the same model.

format     what the file says, and where its tensors are; pure
header     the header's bytes; pure
spool      private files for what is on its way, bounded; tensors into them and out of them
exporting  from the store's files into the file
importing  from the file into the store
"""
