"""The engine: everything that touches MLX. One thread owns it (`thread.EngineThread`); call nothing here from another
thread unless its docstring says so."""
