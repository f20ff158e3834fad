import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, chain_hashes
from agentmem.kv.ledger import ordered
from inference_service.memory.checkpoints import candidates_at
from inference_service.memory.restore import LEAST_SHARED, Lookup, choose, headers, look_up

FINGERPRINT, NAMESPACE = "f" * 64, "ns"


@dataclass(frozen=True)
class Case:
    """A ledger, a sequence that shares its first `keep` tokens, and blocks that exist, with the tokens to their end."""

    ledger: tuple[int, ...]
    keep: int
    sequence: tuple[int, ...]
    found: dict[bytes, tuple[int, ...]]

    @property
    def lookup(self) -> Lookup:
        return look_up(FINGERPRINT, NAMESPACE, self.ledger, self.keep, self.sequence)


def blocks_of(token_ids: tuple[int, ...]) -> dict[bytes, tuple[int, ...]]:
    """All blocks of a sequence by name, with the tokens up to their end."""
    names = chain_hashes(FINGERPRINT, NAMESPACE, token_ids)
    return {name: token_ids[: (index + 1) * BLOCK_TOKENS] for index, name in enumerate(names)}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = st.one_of(st.integers(0, 800), st.sampled_from([255, 256, 257, 511, 512, 513, 768]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    ledger = tuple(rng.randrange(2) for _ in range(draw(sizes)))
    keep = min(draw(sizes), len(ledger))
    new = max(1, draw(sizes))
    sequence = (*ledger[:keep], *(rng.randrange(2) for _ in range(new)))
    everything = blocks_of(ledger) | blocks_of(sequence) | blocks_of(sequence[: draw(sizes)])
    lost = set(draw(st.lists(st.integers(0, len(everything)), max_size=3)))
    found = {name: tokens for i, (name, tokens) in enumerate(everything.items()) if i not in lost}
    return Case(ledger, keep, sequence, found)


@given(case=cases())
def test_every_token_that_is_reused_is_the_sequences_own(case: Case) -> None:
    chosen = case.lookup.choose(case.found)
    at = 0
    for candidate in chosen:
        header = candidate.header
        assert header.first_token == at, "no gap"
        held = case.found[header.chain_hash]
        assert len(held) == header.first_token + header.token_count
        assert 0 < candidate.usable_tokens <= header.token_count
        at += candidate.usable_tokens
        assert held[:at] == case.sequence[:at]
    assert at < len(case.sequence), "the last token is run for its logits"
    assert all(candidate.usable_tokens == BLOCK_TOKENS for candidate in chosen[:-1])
    assert case.lookup.limit == len(case.sequence) - 1


@given(case=cases())
def test_nothing_that_could_be_reused_is_left(case: Case) -> None:
    """Against brute force: of the ledger's blocks up to `keep` and the sequence's own full ones, the longest run."""
    limit = len(case.sequence) - 1
    usable = {}
    for name, held in case.found.items():
        first = (len(held) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if held == case.sequence[: len(held)] and len(held) % BLOCK_TOKENS == 0:
            usable[name] = (first, min(len(held), limit) - first)
        elif name in blocks_of(case.ledger):
            usable[name] = (first, min(len(held), limit, case.keep) - first)
    reached = 0
    while best := max((n for first, n in usable.values() if first == reached and n > 0), default=0):
        reached += best
        if best < BLOCK_TOKENS:
            break
    assert sum(candidate.usable_tokens for candidate in case.lookup.choose(case.found)) == reached


@given(case=cases())
def test_missing_names_what_would_have_helped(case: Case) -> None:
    lookup = case.lookup
    chosen, missing = lookup.choose(case.found), lookup.missing(case.found)
    assert not set(missing) & case.found.keys()
    assert set(missing) <= set(lookup.hashes())
    reused = sum(candidate.usable_tokens for candidate in chosen)
    for name in missing:
        assert sum(c.usable_tokens for c in lookup.choose({*case.found, name})) > reused
    absent = set(lookup.hashes()) - case.found.keys() - set(missing)
    for name in absent:
        assert sum(c.usable_tokens for c in lookup.choose({*case.found, name})) == reused
    assert lookup.missing(lookup.hashes()) == []


@given(size=st.integers(0, 700))
def test_headers_are_the_chain(size: int) -> None:
    token_ids = tuple(range(size))
    found = list(headers(FINGERPRINT, NAMESPACE, token_ids))
    assert [h.chain_hash for h in found] == list(chain_hashes(FINGERPRINT, NAMESPACE, token_ids))
    assert [h.parent for h in found] == [NO_PARENT, *(h.chain_hash for h in found)][: len(found)]
    assert [h.first_token for h in found] == list(range(0, size, BLOCK_TOKENS))
    assert sum(h.token_count for h in found) == size
    assert all(h.token_count == BLOCK_TOKENS for h in found[:-1])
    assert {(h.fingerprint, h.namespace) for h in found} <= {(FINGERPRINT, NAMESPACE)}


def test_names_differ_by_namespace_and_fingerprint() -> None:
    token_ids = tuple(range(300))
    names = {
        h.chain_hash for f, n in [("a", "b"), ("a", "c"), ("c", "b"), ("ab", "")] for h in headers(f, n, token_ids)
    }
    assert len(names) == 8
    other = look_up("other", NAMESPACE, token_ids, 300, (*token_ids, 1))
    assert other.choose(blocks_of(token_ids)) == []


def test_blocks_that_end_at_windows_serve_where_longer_ones_are_not() -> None:
    """An import of what was exported up to a checkpoint has them."""
    ledger = tuple(range(700))
    sequence = (*ledger[:650], *range(1000, 1400))
    windows = candidates_at(FINGERPRINT, NAMESPACE, sequence, (300, 400, 512, 640, 660))
    lookup = look_up(FINGERPRINT, NAMESPACE, ledger, 650, sequence, windows)
    ends = [[c.header.first_token + c.usable_tokens for c in row] for row in lookup.candidates]
    assert ends == [[256], [512, 400, 300], [768, 650, 640], [1024]], "none ends behind what is kept"
    exported = blocks_of(ledger[:640])
    assert sum(c.usable_tokens for c in lookup.choose(exported)) == 640
    assert sum(c.usable_tokens for c in lookup.choose(exported | blocks_of(ledger))) == 650
    assert lookup.missing(exported) == [row.header.chain_hash for row in lookup.candidates[2][:2]]
    stored = {windows[3].name: 640}
    assert choose(lookup, (), exported, stored, exact=True).checkpoint == windows[3]
    without = look_up(FINGERPRINT, NAMESPACE, ledger, 650, sequence)
    assert choose(without, (), exported, stored, exact=True).tokens == 0


@given(case=cases(), shared=st.integers(0, 300), size=st.integers(1, BLOCK_TOKENS))
def test_another_branchs_block_is_used_up_to_the_first_token_that_differs(case: Case, shared: int, size: int) -> None:
    """Where the run ends, and never the last token of the sequence; or not at all where it adds next to nothing."""
    lookup = case.lookup
    place = lookup.end(case.found)
    before = sum(c.usable_tokens for c in lookup.choose(case.found))
    if place is None:
        assert min((before // BLOCK_TOKENS + 1) * BLOCK_TOKENS, lookup.limit) - before < LEAST_SHARED
        return
    first = place.block * BLOCK_TOKENS
    assert before == first + place.taken
    own = case.sequence[first : first + BLOCK_TOKENS]
    theirs = (*own[:shared], *(7 for _ in range(BLOCK_TOKENS)))[:size]
    [*_, header] = headers(FINGERPRINT, NAMESPACE, (*case.sequence[:first], *theirs))
    found = lookup.with_block(FINGERPRINT, NAMESPACE, place, header.chain_hash, ordered(theirs))
    usable = min(shared, len(own), size, lookup.limit - first)
    if usable - place.taken < LEAST_SHARED:
        assert found is None
        return
    assert found is not None
    chosen = found.choose({*case.found, header.chain_hash})
    assert (chosen[-1].header, chosen[-1].usable_tokens) == (header, usable)
    assert sum(c.usable_tokens for c in chosen) == first + usable
    if header.chain_hash not in case.found:
        assert found.choose(case.found) == lookup.choose(case.found), "it is a candidate, and not there yet"


def test_a_block_whose_tokens_do_not_give_its_name_is_of_no_use() -> None:
    """A flipped bit in a row of the store, another model's or namespace's block, one with another parent."""
    sequence = tuple(range(400))
    lookup = look_up(FINGERPRINT, NAMESPACE, (), 0, sequence)
    place = lookup.end({next(iter(blocks_of(sequence)))})
    assert place is not None and place.block == 1
    theirs = (*sequence[256:330], 7)
    name = list(blocks_of((*sequence[:256], *theirs)))[1]
    assert lookup.with_block(FINGERPRINT, NAMESPACE, place, name, ordered(theirs)) is not None
    flipped = ordered((*sequence[256:331], 7))
    for fingerprint, namespace, at, given_name, token_ids in (
        (FINGERPRINT, NAMESPACE, place, name, flipped),
        (FINGERPRINT, NAMESPACE, place, name, b""),
        (FINGERPRINT, NAMESPACE, place, name, ordered(range(BLOCK_TOKENS + 1))),
        ("other", NAMESPACE, place, name, ordered(theirs)),
        (FINGERPRINT, "other", place, name, ordered(theirs)),
        (FINGERPRINT, NAMESPACE, place._replace(parent=name), name, ordered(theirs)),
    ):
        assert lookup.with_block(fingerprint, namespace, at, given_name, token_ids) is None
