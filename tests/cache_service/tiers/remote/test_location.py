"""Where the remote tier is, as settings say it."""

import pytest

from agentmem.kv.object_location import Location
from cache_service.tiers.remote.contract import check_endpoint


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-1/a/b_c/d.e", "my.bucket-1", "a/b_c/d.e"),
        ("s3://bucket/kv/", "bucket", "kv"),
    ],
)
def test_a_bucket_and_a_prefix(text: str, bucket: str, prefix: str) -> None:
    assert Location.parse(text) == Location(bucket, prefix)


def test_two_spellings_of_one_place_are_one() -> None:
    assert str(Location.parse("s3://bucket/kv/")) == "s3://bucket/kv"
    assert str(Location.parse("s3://bucket/")) == "s3://bucket"


def test_none() -> None:
    assert Location.parse("none") is None


@pytest.mark.parametrize(
    "text", ["", "s3://", "s3:///kv", "s3://Bucket", "gs://bucket", "s3://b/../x", "s3://bucket//x", "s3://k:s@bucket"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX"):
        Location.parse(text)


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:9000", "https://s3.example.com", "http://[::1]:9000"])
def test_an_endpoint(text: str) -> None:
    assert check_endpoint(f"{text}/" if text else "") == text


@pytest.mark.parametrize("text", ["127.0.0.1:9000", "http://user:password@host", "http://host/path", "http://host?x"])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        check_endpoint(text)
