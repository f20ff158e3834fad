import pytest
from pydantic import BaseModel, Field, ValidationError

from agentmem.process.models import VARIABLE, Offline


class Settings(BaseModel):
    offline: Offline = Field(False, validate_default=True)


@pytest.mark.parametrize("word", ["1", "true", "yes", "TRUE", " on "])
def test_the_variable_forbids_whatever_the_setting_says(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, word)
    assert Settings().offline
    assert Settings(offline=False).offline


@pytest.mark.parametrize("word", ["", "0", "false", "no", "off", None])
def test_the_variable_never_allows_what_the_setting_forbids(word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if word is not None:
        monkeypatch.setenv(VARIABLE, word)
    assert not Settings().offline
    assert Settings(offline=True).offline


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "maybe")
    with pytest.raises(ValidationError, match="AGENTMEM_OFFLINE is 'maybe'; set it to 1"):
        Settings()
