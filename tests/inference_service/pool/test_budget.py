"""What is promised, against what the device has."""

from inference_service.pool.budget import Budget


def test_what_is_there_less_what_was_promised() -> None:
    there = 100
    budget = Budget(lambda: there)
    assert budget.spare() == 100
    growing = [10]
    budget.promise("model", lambda: growing[0])
    with budget.promised(50):
        assert budget.spare() == 40
        growing[0] = 20
        assert budget.spare() == 30
    assert budget.spare() == 80
    there = 5
    assert budget.spare() == -15, "others have taken what was promised"
    budget.withdraw("model")
    budget.withdraw("model")
    assert budget.spare() == 5
