"""Bits of K and V as users write them: "4" for both, "5/4" for K and V, "4w6" for 6 in sliding windows."""

from typing import Annotated, Final, NamedTuple, Self

from pydantic import BeforeValidator

BITS: Final = (3, 4, 5, 6, 8)
"""MLX has kernels for these."""
_WINDOWS: Final = "w"


class SideBits(NamedTuple):
    """ "4", or "5/4" if K and V differ."""

    k: int
    v: int

    def __str__(self) -> str:
        return str(self.k) if self.k == self.v else f"{self.k}/{self.v}"


class KVBits(NamedTuple):
    """ "4", "5/4", "4w6" or "5/4w8/6". Windows do not grow with the context, so bits are cheapest there."""

    k: int
    v: int
    windows: SideBits | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        full, *windows = text.split(_WINDOWS)
        if len(windows) > 1:
            raise ValueError(_WANTED)
        bits, of_windows = _sides(full), _sides(windows[0]) if windows else None
        return cls(*bits, None if of_windows == bits else of_windows)

    @property
    def of_windows(self) -> SideBits:
        return self.windows or SideBits(self.k, self.v)

    def __str__(self) -> str:
        full = str(SideBits(self.k, self.v))
        return full if self.windows is None else f"{full}{_WINDOWS}{self.windows}"


_WANTED: Final = (
    f'must be "auto", or bits of K and V, as "4", or of each, as "5/4"; each {", ".join(map(str, BITS[:-1]))} or '
    f'{BITS[-1]}; "4w6" has 6 in sliding windows'
)


def _sides(text: str) -> SideBits:
    sides = text.split("/")
    if len(sides) > 2 or any(side not in map(str, BITS) for side in sides):
        raise ValueError(_WANTED)
    return SideBits(int(sides[0]), int(sides[-1]))


AUTO: Final = "auto"
"""The fewest bits that are good for the model, found at its first load."""

DEFAULT: Final = KVBits(4, 4)


def _written(given: object) -> str:
    """Registry files have numbers, too: `kv_bits = 8`."""
    if given == AUTO:
        return AUTO
    whole_number = isinstance(given, int) and not isinstance(given, bool)
    return str(KVBits.parse(str(given) if whole_number or isinstance(given, str) else ""))


KVBitsText = Annotated[str, BeforeValidator(_written)]
