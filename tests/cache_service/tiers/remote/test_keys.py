"""Keys of objects: hashes only, and back."""

from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import FileKind
from cache_service.tiers.remote.contract import ObjectName
from cache_service.tiers.remote.s3 import object_key, object_name

NAMES = st.builds(
    ObjectName,
    st.sampled_from(FileKind),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
    st.just("0123456789abcdef"),
)


@given(NAMES)
def test_a_key_is_folders_and_hex_and_names_one_object(name: ObjectName) -> None:
    key = object_key(name)
    folder, first, file = key.split("/")
    assert folder in ("blocks", "windows")
    assert first == name.chain_hash[:1].hex()
    assert file == f"{name.chain_hash.hex()}-{name.digest.hex()}-{name.generation}.safetensors"
    assert object_name(key) == name


@given(st.text())
def test_other_keys_are_nobodys(key: str) -> None:
    assert object_name(key) is None


def test_keys_that_only_look_alike_are_nobodys() -> None:
    key = object_key(ObjectName(FileKind.BLOCK, b"\xab" * 32, b"\x01" * 16, "0123456789abcdef"))
    assert object_name(key) is not None
    for other in (key.upper(), f"{key}.tmp", f"x/{key}", key.replace("blocks", "others"), key.replace("/ab/", "/ac/")):
        assert object_name(other) is None
