"""Keys of objects: hashes only, and back."""

from hypothesis import given
from hypothesis import strategies as st

from cache_service.files import Kind
from cache_service.remote import ObjectName, keys

NAMES = st.builds(
    ObjectName,
    st.sampled_from(Kind),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
)


@given(NAMES)
def test_a_key_is_folders_and_hex_and_names_one_object(name: ObjectName) -> None:
    key = keys.key(name)
    folder, first, file = key.split("/")
    assert folder in ("blocks", "windows")
    assert first == name.chain_hash[:1].hex()
    assert file == f"{name.chain_hash.hex()}-{name.digest.hex()}.safetensors"
    assert keys.name(key) == name


@given(st.text())
def test_other_keys_are_nobodys(key: str) -> None:
    assert keys.name(key) is None


def test_keys_that_only_look_alike_are_nobodys() -> None:
    key = keys.key(ObjectName(Kind.BLOCK, b"\xab" * 32, b"\x01" * 16))
    assert keys.name(key) is not None
    for other in (key.upper(), f"{key}.tmp", f"x/{key}", key.replace("blocks", "others"), key.replace("/ab/", "/ac/")):
        assert keys.name(other) is None
