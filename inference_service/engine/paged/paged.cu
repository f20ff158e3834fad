// Packed K and V in blocks of the pool, which a sequence's table names by their addresses; comes behind quantized.cu.

// K or V of one layer's head in any block: WORDS words and GROUPS scales of a token, TOKENS tokens in a block.
template <typename T, int WORDS, int GROUPS, int TOKENS>
struct InBlock {
  int64_t words, scales, biases;  // bytes from the block's beginning to the head's first token

  // The three tensors begin at these bytes of a block; `head` counts through the heads of all layers.
  __device__ __forceinline__ InBlock(int64_t words_at, int64_t scales_at, int64_t biases_at, int64_t head)
      : words(words_at + head * (TOKENS * WORDS * 4)),
        scales(scales_at + head * (TOKENS * GROUPS * int64_t(sizeof(T)))),
        biases(biases_at + head * (TOKENS * GROUPS * int64_t(sizeof(T)))) {}

  __device__ __forceinline__ uint32_t* words_of(int64_t block, int token) const {
    return reinterpret_cast<uint32_t*>(block + words) + token * WORDS;
  }
  __device__ __forceinline__ T* scales_of(int64_t block, int token) const {
    return reinterpret_cast<T*>(block + scales) + token * GROUPS;
  }
  __device__ __forceinline__ T* biases_of(int64_t block, int token) const {
    return reinterpret_cast<T*>(block + biases) + token * GROUPS;
  }
  // From one token of a block on.
  __device__ __forceinline__ Side<T> from(int64_t block, int token) const {
    return {words_of(block, token), scales_of(block, token), biases_of(block, token), WORDS, GROUPS, GROUPS};
  }
};

// The same of one sequence by its tokens' positions; the table begins at position `first`.
template <typename T, int WORDS, int GROUPS, int TOKENS>
struct Paged {
  InBlock<T, WORDS, GROUPS, TOKENS> in;
  const int64_t* table;
  int first;

  __device__ __forceinline__ const uint32_t* words_of(int token) const {
    return in.words_of(table[(token - first) / TOKENS], (token - first) % TOKENS);
  }
  __device__ __forceinline__ const T* scales_of(int token) const {
    return in.scales_of(table[(token - first) / TOKENS], (token - first) % TOKENS);
  }
  __device__ __forceinline__ const T* biases_of(int token) const {
    return in.biases_of(table[(token - first) / TOKENS], (token - first) % TOKENS);
  }
};

// Finds where a token is to be written, by its position, with the row's table, which begins at position `first`. False
// for tokens before the table, or before `floor`.
template <int TOKENS>
__device__ __forceinline__ bool find_place(
    const int64_t* table, int first, int floor, int position, int64_t& block, int& slot) {
  if (position < first || position < floor) return false;
  block = table[(position - first) / TOKENS];
  slot = (position - first) % TOKENS;
  return true;
}
