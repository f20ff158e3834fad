// K and V of new tokens on their way into a cache: centred, rotated and packed; comes after rotation.cu.
//
// A warp takes one row, a token of a KV head, and computes in float32. So what is written does not depend on how many
// rows and tokens are written with it.

// What a lane's `code` of BITS bits gives to one word of the string that the codes of a warp are.
template <int BITS>
__device__ __forceinline__ uint32_t word_of(uint32_t code, int word) {
  int bit = threadIdx.x % 32 * BITS - 32 * word;
  uint32_t piece = bit <= -BITS || bit >= 32 ? 0 : bit >= 0 ? code << bit : code >> -bit;
  return __reduce_or_sync(ALL, piece);
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL, x, apart);
  return x;
}

// Packs a row, of which a lane has every 32nd element. Codes are of scale and bias of each group's whole range, as they
// would be kept, rounded. What is kept has the least squared error for these codes; but of 8 bits, which is lost in
// that rounding.
template <typename T, int BITS, int GROUP, int WIDTH>
__device__ __forceinline__ void pack_row(const float (&x)[WIDTH / 32], uint32_t* words, T* scales, T* biases) {
  constexpr int LEVELS = (1 << BITS) - 1, SHARE = GROUP / 32;
  static_assert(WIDTH % GROUP == 0 && GROUP % 32 == 0, "the row does not split so");
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < WIDTH / GROUP; ++g) {
    const float* own = x + g * SHARE;
    float low = own[0], high = own[0];
#pragma unroll
    for (int j = 1; j < SHARE; ++j) {
      low = fminf(low, own[j]);
      high = fmaxf(high, own[j]);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      low = fminf(low, __shfl_xor_sync(ALL, low, apart));
      high = fmaxf(high, __shfl_xor_sync(ALL, high, apart));
    }
    T kept_scale = static_cast<T>(fmaxf((high - low) / LEVELS, 1e-7f)), kept_bias = static_cast<T>(low);
    float scale = static_cast<float>(kept_scale), bias = static_cast<float>(kept_bias);
    float codes = 0.0f, squares = 0.0f, values = 0.0f, products = 0.0f;
#pragma unroll
    for (int j = 0; j < SHARE; ++j) {
      float above = own[j] - bias, level = fminf(fmaxf(rintf(above / scale), 0.0f), LEVELS);
      codes += level;
      squares += level * level;
      values += above;
      products += level * above;
      uint32_t code = static_cast<uint32_t>(level), mine = 0;
#pragma unroll
      for (int word = 0; word < BITS; ++word) {
        uint32_t whole = word_of<BITS>(code, word);
        if (lane == word) mine = whole;
      }
      if (lane < BITS) words[(g * SHARE + j) * BITS + lane] = mine;
    }
    if constexpr (BITS < 8) {
      float code = sum_of_warp(codes) / GROUP, value = sum_of_warp(values) / GROUP;
      float spread = sum_of_warp(squares) / GROUP - code * code;
      if (spread > 0.01f) {  // Else there is no range.
        scale = (sum_of_warp(products) / GROUP - code * value) / spread;
        kept_scale = static_cast<T>(scale);
        kept_bias = static_cast<T>(bias + value - static_cast<float>(kept_scale) * code);
      }
    }
    if (lane == 0) {
      scales[g] = kept_scale;
      biases[g] = kept_bias;
    }
  }
}

// Packs a row of `given` elements, filled up with zeros, less a mean; rotated if BLOCK is not 0.
template <typename T, int BITS, int GROUP, int WIDTH, int BLOCK>
__device__ void encode_row(
    const T* row, int64_t step, int given, const T* mean, int64_t mean_step, uint32_t* words, T* scales, T* biases) {
  int lane = threadIdx.x % 32;
  float x[WIDTH / 32];
#pragma unroll
  for (int j = 0; j < WIDTH / 32; ++j) {
    int i = 32 * j + lane;
    x[j] = i < given ? static_cast<float>(row[i * step]) : 0.0f;
    if (mean != nullptr) x[j] -= static_cast<float>(mean[i * mean_step]);
    if constexpr (BLOCK != 0) x[j] = with_sign(x[j] * inverse_root(BLOCK), i);
  }
  if constexpr (BLOCK != 0) transform_row<WIDTH, BLOCK>(x);
  pack_row<T, BITS, GROUP, WIDTH>(x, words, scales, biases);
}
