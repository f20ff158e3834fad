"""What a namespace may take, and what it is told."""

from cache_service.tiers.quotas import NO_QUOTAS, Quotas, Usage

QUOTAS = Quotas(1000, {"small": 10})


def test_a_namespaces_own_quota_goes_before_everybodys() -> None:
    assert (QUOTAS.of("any"), QUOTAS.of("small"), NO_QUOTAS.of("any")) == (1000, 10, None)
    assert Quotas(None, {"small": 10}).of("any") is None


def test_ledgers_and_kv_count_together() -> None:
    assert QUOTAS.excess("any", Usage(400, 600)) == 0
    assert QUOTAS.excess("any", Usage(401, 600)) == 1
    assert NO_QUOTAS.excess("any", Usage(10**15, 10**15)) == 0


def test_ledgers_need_room_beside_what_cannot_go() -> None:
    assert QUOTAS.has_room("any", 900, 100)
    assert not QUOTAS.has_room("any", 900, 101)
    assert NO_QUOTAS.has_room("any", 10**15, 0)


def test_the_refusals_say_what_to_do() -> None:
    kv = QUOTAS.refusal("any", Usage(900, 200), 40, of_ledger=False).message
    assert "'any' is 1000 bytes (--namespace-bytes)" in kv and "1100 bytes" in kv and "40 bytes belong to pinned" in kv
    assert "unpin or delete agents, delete workflow runs, or raise" in kv
    ledger = QUOTAS.refusal("small", Usage(0, 11), 0, of_ledger=True).message
    assert "(--namespaces)" in ledger and "delete agents or workflow runs, or raise the quota" in ledger
