"""`python -m inference_service.hub search WORDS` and `pull MODEL`."""

from inference_service.hub.commands import main

if __name__ == "__main__":
    main(prog_name="agentmem models")
