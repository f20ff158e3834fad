"""What command lines refuse before anything is measured."""

import pytest

from benchmarks.options import at_least, parser


@pytest.mark.parametrize(("given", "said"), [("0", "give 1 or more"), ("-3", "give 1 or more"), ("a", "invalid")])
def test_too_few_samples(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = parser("Says what.\n\n    As it stands.")
    options.add_argument("--samples", type=at_least(1))
    assert options.parse_args(["--samples", "1"]).samples == 1
    with pytest.raises(SystemExit):
        options.parse_args([f"--samples={given}"])
    assert said in capsys.readouterr().err
    assert "\n\n    As it stands." in options.format_help()
