"""An agent as one file: exported by one worker, imported by another that serves the same model.

format     what the file is made of, and how its parts are read
exporting  from the store's files into the file
importing  from the file into the store
"""
