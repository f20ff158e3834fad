// Packed K and V in blocks of the pool; comes behind quantized.metal. As paged.cu, but there are no addresses: a table
// names a block's segment, which is an input, and its place there.

// K or V of one layer's head from a block's token on: WORDS words and GROUPS scales of a token, TOKENS tokens in a
// block. The three tensors begin so many words behind the block's beginning; `head` counts through the heads of all
// layers.
template <typename T, int WORDS, int GROUPS, int TOKENS>
inline Side<const device uint32_t*, const device T*> in_block(
    const device uint32_t* block, int words, int scales, int biases, int head, int token) {
  const int64_t at = static_cast<int64_t>(head) * TOKENS + token;
  return {
      block + words + at * WORDS,
      reinterpret_cast<const device T*>(block + scales) + at * GROUPS,
      reinterpret_cast<const device T*>(block + biases) + at * GROUPS,
      WORDS,
      GROUPS,
      GROUPS};
}
