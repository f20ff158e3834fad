// Packed weights to their elements, in order; comes after tiles.cu. A thread takes EACH words, a block apart, so that
// warps read and write whole lines and several loads are on their way.

template <typename T, int BITS, int GROUP, int EACH>
__device__ void dequantize_words(const uint32_t* words, const T* scales, const T* biases, int64_t count, T* out) {
  constexpr int OF_WORD = 32 / BITS;
  static_assert(GROUP % OF_WORD == 0, "a word's elements are not of one group");
  int64_t first = int64_t(blockIdx.x) * THREADS * EACH + threadIdx.x;
  uint32_t word[EACH];
  float scale[EACH], bias[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    int64_t at = min(first + i * THREADS, count - 1), group = at * OF_WORD / GROUP;
    word[i] = words[at];
    scale[i] = static_cast<float>(scales[group]);
    bias[i] = static_cast<float>(biases[group]);
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (first + i * THREADS >= count) return;
    float level[OF_WORD];
    unpack<BITS>(word[i], level);
    Words<OF_WORD / 2> pairs;
#pragma unroll
    for (int j = 0; j < OF_WORD / 2; ++j) {
      pairs.at[j] = pair<T>(fmaf(scale[i], level[2 * j], bias[i]), fmaf(scale[i], level[2 * j + 1], bias[i]));
    }
    reinterpret_cast<Words<OF_WORD / 2>*>(out)[first + i * THREADS] = pairs;
  }
}
