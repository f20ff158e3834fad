"""Bits of K and V as users write them: "4" for both, "5/4" for 5 bits of K and 4 of V."""

from typing import Annotated, Final, NamedTuple, Self

from pydantic import BeforeValidator

BITS: Final = (3, 4, 5, 6, 8)
"""Bits per element that K and V can have: those that MLX has kernels for."""


class KVBits(NamedTuple):
    """Bits per element of K and of V. As text "4", or "5/4" where they differ."""

    k: int
    v: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Bits of "4" or "5/4". Raises ValueError, which says what to give."""
        sides = text.split("/")
        if len(sides) > 2 or any(side not in map(str, BITS) for side in sides):
            known = f"{', '.join(map(str, BITS[:-1]))} or {BITS[-1]}"
            raise ValueError(f'must be "auto", or bits of K and V, as "4", or of each, as "5/4"; each {known}')
        return cls(int(sides[0]), int(sides[-1]))

    def __str__(self) -> str:
        return str(self.k) if self.k == self.v else f"{self.k}/{self.v}"


AUTO: Final = "auto"
"""As a setting: the fewest bits that are good for the model, as its first load finds."""

DEFAULT: Final = KVBits(4, 4)
"""What is taken where nothing else is asked for."""


def _written(given: object) -> str:
    """In the one way that each is written. A number is taken for both: registry files have `kv_bits = 8`."""
    if given == AUTO:
        return AUTO
    whole_number = isinstance(given, int) and not isinstance(given, bool)
    return str(KVBits.parse(str(given) if whole_number or isinstance(given, str) else ""))


KVBitsText = Annotated[str, BeforeValidator(_written)]
"""A setting or a key of a file: `KVBits` as text, or "auto"."""
