// Affinely quantized K and V as kernels for Apple's GPUs read them. What those leave is as quantized.cu says: of each
// chunk of the tokens and each query, what a softmax over that chunk alone would give, as largest score, sum of
// exponentials and unnormalized output, with scores in units of log2(e).
//
// MLX passes inputs of fewer than 8 elements as `constant` and all others as `device`, so that pointers to what may be
// as small are template parameters.

constant constexpr float LOG2E = 1.4426950408889634f;
constant constexpr float LEAST = -1e30f;  // a maximum to start from: finite, so that nothing subtracts infinities

// COUNT neighbouring elements of a row, which is one string of bits, from the lowest of its first word on. A lane's
// elements are whole bytes, and of 3, 5 and 6 bits begin anywhere in a word: `load` takes the words that they lie in,
// and shifts them.
template <int BITS, int COUNT>
struct Packed {
  static constant constexpr const int BYTES = COUNT * BITS / 8;
  static constant constexpr const int BEFORE = BYTES % 4 == 0 ? 0 : BYTES % 2 == 0 ? 2 : 3;  // of the first word
  static constant constexpr const int WORDS = (BEFORE + BYTES + 3) / 4;
  static_assert(COUNT * BITS % 8 == 0, "a lane has whole bytes");

  uint32_t words[WORDS];

  template <typename Row>
  void load(Row row, int lane) {
    const int first = lane * BYTES;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = row[min(first / 4 + i, (first + BYTES - 1) / 4)];
    if (BEFORE == 0) return;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = from_bit(32 * i + first % 4 * 8);
  }

  float element(int i) const {
    return static_cast<float>(from_bit(i * BITS, BITS) & ((1u << BITS) - 1));
  }

  // The bits from one on, of which the lowest `count` are right.
  uint32_t from_bit(int bit, int count = 32) const {
    const int word = bit / 32, by = bit % 32;
    return by + count <= 32 || word + 1 >= WORDS ? words[word] >> by : words[word] >> by | words[word + 1] << (32 - by);
  }
};

// K or V of one row and KV head; steps are from token to token.
template <typename Words, typename Numbers>
struct Side {
  Words words;
  Numbers scales, biases;
  int64_t words_step, scales_step, biases_step;
};

template <typename Words, typename Numbers>
inline Side<Words, Numbers> side(
    Words words, Numbers scales, Numbers biases, int64_t words_step, int64_t scales_step, int64_t biases_step) {
  return {words, scales, biases, words_step, scales_step, biases_step};
}

// A lane's share of a token's row, as scale * x + bias with x small integers.
template <int BITS, int GROUP, int WIDTH, int LANES>
struct Share {
  static constant constexpr const int UNIT = 32 % BITS == 0 ? 32 / BITS : 8;  // elements that are whole bytes
  static constant constexpr const int SIZE = WIDTH / LANES;
  static constant constexpr const int GROUPS = GROUP % SIZE == 0 ? 1 : SIZE / UNIT;  // else one for each unit
  static constant constexpr const int PART = SIZE / GROUPS;
  static_assert(WIDTH % (UNIT * LANES) == 0 && GROUP % UNIT == 0, "the row does not split so");

  Packed<BITS, SIZE> packed;
  float scale[GROUPS], bias[GROUPS];

  template <typename Words, typename Numbers>
  void load(thread const Side<Words, Numbers>& from, int token, int lane) {
    packed.load(from.words + token * from.words_step, lane);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      const int group = (lane * SIZE + g * PART) / GROUP;
      scale[g] = static_cast<float>(from.scales[token * from.scales_step + group]);
      bias[g] = static_cast<float>(from.biases[token * from.biases_step + group]);
    }
  }
};
