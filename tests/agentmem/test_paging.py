import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import paging
from agentmem.errors import InvalidArgument
from agentmem.v1.model_pb2 import ListModelsRequest


@given(st.tuples(st.text(min_size=1), st.text(min_size=1)))
def test_a_pair_comes_back(key: tuple[str, str]) -> None:
    assert paging.pair(paging.token(key)) == key


@given(st.integers(1, 2**50))
def test_a_number_comes_back(number: int) -> None:
    assert paging.number(paging.token((str(number),))) == number


@given(st.text(min_size=1) | st.lists(st.text()).map(lambda parts: paging.token(tuple(parts))))
def test_whatever_is_sent_is_a_key_or_refused(token: str) -> None:
    for read in (paging.pair, paging.number):
        try:
            found = read(token)
        except InvalidArgument as error:
            assert error.field == "page_token"  # noqa: PT017 - either outcome is right
        else:
            assert found is not None


def test_no_token_is_the_first_page() -> None:
    assert paging.pair("") is None and paging.number("") is None


@pytest.mark.parametrize("size", [0, -1, 1001])
def test_page_sizes_have_limits(size: int) -> None:
    with pytest.raises(InvalidArgument):
        paging.asked_size(ListModelsRequest(page_size=size))
    sizes = [paging.asked_size(ListModelsRequest(page_size=value)) for value in (None, 1, 1000)]
    assert sizes == [100, 1, 1000]
