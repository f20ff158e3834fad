"""Work on a data directory that is not served."""
