"""Content that is not text, which models here do not read: words stand in its place."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, Field

from gateway.api.validation import Forgiving

_Known = TypeVar("_Known")

_Image: TypeAlias = Literal["image", "image_url", "input_image", "computer_screenshot"]
_Audio: TypeAlias = Literal["audio", "audio_url", "input_audio"]
_Video: TypeAlias = Literal["video", "video_url", "input_video"]
_File: TypeAlias = Literal["file", "input_file", "container_upload"]

MEDIA_KINDS: Final[Mapping[str, str]] = {
    name: kind
    for kind, names in (("image", _Image), ("audio", _Audio), ("video", _Video), ("file", _File))
    for name in get_args(names)
}


class Media(Forgiving):
    """Nothing of it is read."""

    type: Literal[_Image, _Audio, _Video, _File]

    @property
    def text(self) -> str:
        return left_out(MEDIA_KINDS[self.type])


@cache
def _known_types() -> frozenset[str]:
    models, known = [Forgiving], set[str]()
    for model in models:
        models += model.__subclasses__()
        if "type" in model.model_fields:
            said = get_args(model.model_fields["type"].annotation)
            known.update(word for each in said for word in get_args(each) or (each,))
    return frozenset(known)


def _unknown(kind: str) -> str:
    if kind in _known_types():
        raise ValueError("is the type of another model")
    return kind


class Other(Forgiving):
    """A part, item or tool of another server: it is left out."""

    type: Annotated[str, AfterValidator(_unknown)]


OrOther = Annotated[_Known | Other, Field(union_mode="left_to_right")]
"""A model, or models with a discriminator, or what none of them knows. `complaints` tells only of the former."""


class Refusal(Forgiving):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def others(*groups: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(one.type for group in groups for one in group if isinstance(one, Other)))


def left_out(kind: str) -> str:
    return f"[{kind} left out: this model reads text only]"


def counted(contents: Iterable[str | list[Any] | None]) -> list[str]:
    """Return the media in contents, as "image" or "3 images"."""
    kinds: dict[str, int] = {}
    for content in contents:
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Media):
                kind = MEDIA_KINDS[part.type]
                kinds[kind] = kinds.get(kind, 0) + 1
    return [kind if count == 1 else f"{count} {kind}{'' if kind == 'audio' else 's'}" for kind, count in kinds.items()]
