"""Content that is not text, which models here do not read: words stand in its place, and the conversation goes on."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import ConfigDict

from gateway.api.validation import Forgiving, Text

_KINDS: Final[Mapping[str, str]] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "container_upload": "file",
}


class Media(Forgiving):
    """A part of a content that is no text. Nothing of it is read."""

    model_config = ConfigDict(extra="ignore")

    type: Literal[
        "image",
        "image_url",
        "input_image",
        "computer_screenshot",
        "audio",
        "audio_url",
        "input_audio",
        "video",
        "video_url",
        "input_video",
        "file",
        "input_file",
        "container_upload",
    ]

    @property
    def text(self) -> str:
        """The words in its place."""
        return left_out(_KINDS[self.type])


class Refusal(Forgiving):
    """A refusal of an assistant's, in words."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        """The words."""
        return self.refusal


def left_out(kind: str) -> str:
    """Return the words in place of an image, a video, audio or a file."""
    return f"[{kind} left out: this model reads text only]"


def counted(contents: Iterable[str | list[Any] | None]) -> list[str]:
    """Return what is no text in contents, as "image" or "3 images"."""
    kinds: dict[str, int] = {}
    for content in contents:
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Media):
                kinds[_KINDS[part.type]] = kinds.get(_KINDS[part.type], 0) + 1
    return [kind if count == 1 else f"{count} {kind}{'' if kind == 'audio' else 's'}" for kind, count in kinds.items()]
