// Packed K and V as the arrays that they stand for; comes behind rotation.cu.
//
// A warp takes one row, a token of a KV head, and computes in float32.

// Code `element` of a row of packed codes.
template <int BITS>
__device__ __forceinline__ float code_of(const uint32_t* words, int element) {
  int bit = element * BITS, word = bit / 32, by = bit % 32;
  uint32_t low = words[word] >> by;
  if constexpr (32 % BITS != 0) {
    if (by + BITS > 32) low |= words[word + 1] << (32 - by);
  }
  return static_cast<float>(low & ((1u << BITS) - 1));
}

// The row of WIDTH elements, out of the packed basis if BLOCK is not 0, plus the mean.
template <typename T, int BITS, int GROUP, int WIDTH, int BLOCK>
__device__ void decode_row(
    const uint32_t* words, const T* scales, const T* biases, const T* mean, int64_t mean_step, T* out) {
  int lane = threadIdx.x % 32;
  float x[WIDTH / 32];
#pragma unroll
  for (int j = 0; j < WIDTH / 32; ++j) {
    int i = 32 * j + lane;
    x[j] = static_cast<float>(scales[i / GROUP]) * code_of<BITS>(words, i) + static_cast<float>(biases[i / GROUP]);
  }
  if constexpr (BLOCK != 0) {
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) x[j] *= inverse_root(BLOCK);
    transform_row<WIDTH, BLOCK>(x);
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) x[j] = with_sign(x[j], 32 * j + lane);
  }
#pragma unroll
  for (int j = 0; j < WIDTH / 32; ++j) {
    int i = 32 * j + lane;
    float plus = mean == nullptr ? 0.0f : static_cast<float>(mean[i * mean_step]);
    out[i] = static_cast<T>(x[j] + plus);
  }
}
