"""Content that is not text, which models here do not read: words stand in its place, and the conversation goes on."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import ConfigDict

from gateway.api.validation import Forgiving

_Image: TypeAlias = Literal["image", "image_url", "input_image", "computer_screenshot"]
_Audio: TypeAlias = Literal["audio", "audio_url", "input_audio"]
_Video: TypeAlias = Literal["video", "video_url", "input_video"]
_File: TypeAlias = Literal["file", "input_file", "container_upload"]

MEDIA_KINDS: Final[Mapping[str, str]] = {
    name: kind
    for kind, names in (("image", _Image), ("audio", _Audio), ("video", _Video), ("file", _File))
    for name in get_args(names)
}
"""The word for a part of each type."""


class Media(Forgiving):
    """A part of a content that is no text. Nothing of it is read."""

    model_config = ConfigDict(extra="ignore")

    type: Literal[_Image, _Audio, _Video, _File]

    @property
    def text(self) -> str:
        """The words in its place."""
        return left_out(MEDIA_KINDS[self.type])


class Refusal(Forgiving):
    """A refusal of an assistant's, in words."""

    type: Literal["refusal"]
    refusal: str

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
                kind = MEDIA_KINDS[part.type]
                kinds[kind] = kinds.get(kind, 0) + 1
    return [kind if count == 1 else f"{count} {kind}{'' if kind == 'audio' else 's'}" for kind, count in kinds.items()]
