// Affinely quantized K and V as kernels read them, and what those leave: of each chunk of the tokens and each query,
// what a softmax over that chunk alone would give, as largest score, sum of exponentials and unnormalized output.
// merging.cu joins them. Scores are kept in units of log2(e), because exp2 is what the hardware has.

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LEAST = -1e30f;  // a maximum to start from: finite, so that nothing subtracts infinities

// What one lane loads at once, as wide as its alignment allows.
template <int N>
struct alignas(N % 4 == 0 ? 16 : N % 2 == 0 ? 8 : 4) Words {
  uint32_t at[N];
};

// The 32 / BITS integers of a word as floats: each is put into the mantissa of 2^23, which is then subtracted.
template <int BITS>
__device__ __forceinline__ void unpack(uint32_t word, float* out) {
#pragma unroll
  for (int i = 0; i < 32 / BITS; ++i) {
    uint32_t bytes = BITS == 8 ? word : (i % 2 ? word >> 4 : word) & 0x0F0F0F0Fu;
    int byte = BITS == 8 ? i : i / 2;
    out[i] = __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 | byte)) - 8388608.0f;
  }
}

// Elements that are unpacked at once: those of a word, or 8 where a word does not hold whole ones.
template <int BITS>
constexpr int UNIT = 32 % BITS == 0 ? 32 / BITS : 8;

// UNITS neighbouring units of a row, which is one string of bits, from the lowest of its first word on. Units of 3, 5
// and 6 bits are whole bytes and begin anywhere in a word: `load` takes the words that they lie in, `align` shifts
// them.
template <int BITS, int UNITS>
struct Packed {
  static constexpr int BYTES = UNITS * UNIT<BITS> * BITS / 8;
  static constexpr int BEFORE = BYTES % 4 == 0 ? 0 : BYTES % 2 == 0 ? 2 : 3;  // bytes of the first word, at most
  static constexpr int WORDS = (BEFORE + BYTES + 3) / 4;

  Words<WORDS> words;

  __device__ __forceinline__ void load(const uint32_t* row, int at) {
    if constexpr (BEFORE == 0) {
      words = *reinterpret_cast<const Words<WORDS>*>(row + at * WORDS);
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) words.at[i] = row[min(at * BYTES / 4 + i, (at * BYTES + BYTES - 1) / 4)];
    }
  }

  __device__ __forceinline__ void align(int at) {
    if constexpr (BEFORE != 0) {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) words.at[i] = shifted(i, at * BYTES % 4 * 8);
    }
  }

  // The integers of one unit as floats. Of 3, 5 and 6 bits, the mantissa of 2^23 takes as many as it holds, and each is
  // brought down from where it lies there.
  __device__ __forceinline__ void unpack_unit(int unit, float* out) const {
    if constexpr (32 % BITS == 0) {
      unpack<BITS>(words.at[unit], out);
    } else {
      constexpr int HELD = 23 / BITS;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int first = (unit * 8 + i / HELD * HELD) * BITS, bit = i % HELD * BITS;
        uint32_t held = __byte_perm(shifted(first / 32, first % 32), 0x4Bu, 0x4210);
        uint32_t one = held & (0x7F000000u | ((1u << BITS) - 1) << bit);
        out[i] = fmaf(__uint_as_float(one), 1.0f / (1 << bit), -8388608.0f / (1 << bit));
      }
    }
  }

  __device__ __forceinline__ uint32_t shifted(int word, int by) const {
    return __funnelshift_r(words.at[word], words.at[min(word + 1, WORDS - 1)], by);
  }
};

// K or V of one row and KV head; steps are from token to token.
template <typename T>
struct Side {
  const uint32_t* words;
  const T* scales;
  const T* biases;
  int64_t words_step, scales_step, biases_step;

  __device__ __forceinline__ const uint32_t* words_of(int token) const { return words + token * words_step; }
  __device__ __forceinline__ const T* scales_of(int token) const { return scales + token * scales_step; }
  __device__ __forceinline__ const T* biases_of(int token) const { return biases + token * biases_step; }
};
