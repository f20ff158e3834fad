// What the kernels over affinely quantized K and V share; `cuda_kernels` compiles it in front of each.
//
// Each takes chunks of the tokens and leaves, for each query, what a softmax over that chunk alone would give: the largest
// score, the sum of exponentials and the unnormalized output. `merge_chunks` joins the chunks. Scores are kept in units of
// log2(e), because exp2 is what the hardware has.

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

// K or V of one row and KV head; steps are from token to token.
template <typename T>
struct Side {
  const uint32_t* words;
  const T* scales;
  const T* biases;
  int64_t words_step, scales_step, biases_step;
};

// One head's output from its chunks. A sink takes part in the sum and in nothing else; the mean of V is weighted with
// what it leaves.
template <typename T, int V_WIDTH>
__device__ void merge_chunks(
    const float* stats, const float* partial, int chunks, const float* sink, const T* mean, T* out) {
  float top = sink == nullptr ? LEAST : *sink * LOG2E;
  float from = top;
  for (int c = 0; c < chunks; ++c) top = fmaxf(top, stats[2 * c]);
  float sunk = sink == nullptr ? 0.0f : exp2f(from - top), total = sunk, x = 0;
#pragma unroll 8
  for (int c = 0; c < chunks; ++c) {
    float weight = exp2f(stats[2 * c] - top);
    total += weight * stats[2 * c + 1];
    x += weight * partial[c * V_WIDTH + threadIdx.x];
  }
  if (mean != nullptr) x += (total - sunk) * static_cast<float>(mean[threadIdx.x]);
  out[threadIdx.x] = static_cast<T>(x / total);
}
