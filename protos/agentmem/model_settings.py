"""Settings that say which models there are: the worker's, and those of who starts one."""

from pathlib import Path

from pydantic import Field

from agentmem.offline import VARIABLE, Offline
from agentmem.settings import ServiceSettings


class ModelSettings(ServiceSettings):
    """The registry's settings; see `agentmem.model_registry`."""

    model: list[str] = Field(
        default_factory=list,
        description="PATH_OR_HUB_ID, NAME=PATH_OR_HUB_ID or demo; repeatable, the first is the default where "
        "--models names none",
    )
    models: Path | None = Field(None, description="registry file: models with settings of their own, in TOML")
    adapter: list[str] = Field(
        default_factory=list,
        description="BASE+NAME=DIRECTORY: a LoRA adapter on the model BASE, served as BASE+NAME; repeatable",
    )
    offline: Offline = Field(
        False,
        validate_default=True,
        description=f"never use the network: models are directories, or were fetched before; so does {VARIABLE}=1",
    )
