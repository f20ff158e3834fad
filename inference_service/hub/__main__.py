"""`python -m inference_service.hub search WORDS` and `pull MODEL`; `fetch MODEL` is `pull` for programs.

`fetch` is silent if the model is here, and then imports no MLX.
"""

import sys

from inference_service.models.weight_files import is_here

if __name__ == "__main__":
    arguments = sys.argv[1:]
    silent = arguments[:1] == ["fetch"]
    if not silent or not is_here(arguments[-1]):
        from inference_service.hub.commands import main

        main(arguments, prog_name="agentmem models")
