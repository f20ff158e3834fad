"""`python -m inference_service.hub search WORDS` and `pull MODEL`.

`fetch MODEL` is for programs: `pull`, but silent where the model is here, which is seen without importing MLX.
"""

import sys

from inference_service.models.hub_cache import is_here

if __name__ == "__main__":
    arguments = sys.argv[1:]
    silent = arguments[:1] == ["fetch"]
    if not silent or not is_here(arguments[-1]):
        from inference_service.hub.commands import main

        main(arguments, prog_name="agentmem models")
