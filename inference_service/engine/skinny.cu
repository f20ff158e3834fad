// Products of a few rows with quantized weights, on tensor cores; comes behind tiles.cu.
//
// A block computes 16 * TILES columns of the result for up to 8 * EIGHTS rows. Its warps divide K between them, because
// there are fewer blocks than multiprocessors otherwise, and add their sums in shared memory. Weights are matrix A, and
// the rows are matrix B. Which column of A is which element of K does not matter as long as it is the same of B: so a
// lane loads 16 bytes of a row of weights, neighbouring elements of K, and gives four of them to each product.

constexpr int WARPS = THREADS / 32;

// How 4 bits become a 16-bit float: as the last bits of the mantissa of a power of two, which is then subtracted.
template <typename T>
constexpr uint32_t POWER = 0x43004300u;  // 128
template <>
constexpr uint32_t POWER<__half> = 0x64006400u;  // 1024

// Two elements, as one calculates with them.
template <typename T>
using Two16 = decltype(Product<T>::round(0.0f, 0.0f));

template <typename T>
__device__ __forceinline__ Two16<T> as_two(uint32_t word) {
  return *reinterpret_cast<Two16<T>*>(&word);
}

// The elements of a word of weights by pairs: of 4 bits each with the one that is four further on, of 8 bits with its
// neighbour.
template <typename T, int BITS>
__device__ __forceinline__ void dequantize_word(uint32_t word, float scale, float bias, uint32_t* out) {
  if constexpr (BITS == 4) {
    Two16<T> by = Product<T>::round(scale, scale), plus = Product<T>::round(bias, bias);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Two16<T> level = __hsub2(as_two<T>((word >> 4 * j & 0x000F000Fu) | POWER<T>), as_two<T>(POWER<T>));
      Two16<T> both = __hfma2(level, by, plus);
      out[j] = *reinterpret_cast<uint32_t*>(&both);
    }
  } else {
    float w[32 / BITS];
    unpack<BITS>(word, w);
#pragma unroll
    for (int j = 0; j < 16 / BITS; ++j) out[j] = pair<T>(fmaf(scale, w[2 * j], bias), fmaf(scale, w[2 * j + 1], bias));
  }
}

// Elements of a row by the same pairs.
template <int BITS>
__device__ __forceinline__ void order_row(const uint32_t* in, uint32_t* out) {
#pragma unroll
  for (int j = 0; j < 16 / BITS; ++j) {
    out[j] = BITS == 4 ? __byte_perm(in[j / 2], in[j / 2 + 2], j % 2 ? 0x7632 : 0x5410) : in[j];
  }
}

// What one lane needs of the weights: of 2 * TILES outputs, 8 apart, PER elements of K from `k` on.
template <typename T, int BITS, int GROUP, int TILES>
struct Weights {
  static constexpr int PER = 128 / BITS, OF_WORD = 32 / BITS;
  static_assert(GROUP % PER == 0, "a lane's elements are not of one group");

  Words<4> words[2 * TILES];
  T scale[2 * TILES], bias[2 * TILES];

  __device__ __forceinline__ void fetch(
      const uint32_t* all_words, const T* scales, const T* biases, int first, int outputs, int k, int inputs) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
      if (k < inputs) {
        int64_t output = min(first + 8 * i, outputs - 1), at = output * (inputs / GROUP) + k / GROUP;
        words[i] = *reinterpret_cast<const Words<4>*>(all_words + output * (inputs / OF_WORD) + k / OF_WORD);
        scale[i] = scales[at];
        bias[i] = biases[at];
      } else {  // weights of zero
        words[i] = {};
        scale[i] = bias[i] = static_cast<T>(0.0f);
      }
    }
  }
};

// x [rows, inputs] by weights [outputs, inputs] to out [rows, outputs], all contiguous.
template <typename T, int BITS, int GROUP, int EIGHTS, int TILES>
__device__ void multiply_few(
    const T* x, int rows, const uint32_t* words, const T* scales, const T* biases, int inputs,
    int outputs, T* out) {
  using Own = Weights<T, BITS, GROUP, TILES>;
  constexpr int PER = Own::PER, PAIRS = Own::OF_WORD / 2, STEP = WARPS * 4 * PER, OUTPUTS = 16 * TILES;
  __shared__ float sums[WARPS][8 * EIGHTS][OUTPUTS + 4];  // 4 more, so that a warp's sums lie in different banks
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int first = blockIdx.x * OUTPUTS, first_row = blockIdx.y * 8 * EIGHTS;

  float c[TILES][EIGHTS][4] = {};
  int k = (warp * 4 + t) * PER;
  Own next;
  next.fetch(words, scales, biases, first + g, outputs, k, inputs);
  for (int of_warp = warp * 4 * PER; of_warp < inputs; of_warp += STEP, k += STEP) {
    Own now = next;
    Words<PAIRS> row[EIGHTS][4];
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
      const T* from = x + int64_t(min(first_row + 8 * n + g, rows - 1)) * inputs + (k < inputs ? k : 0);
#pragma unroll
      for (int word = 0; word < 4; ++word) row[n][word] = reinterpret_cast<const Words<PAIRS>*>(from)[word];
    }
    next.fetch(words, scales, biases, first + g, outputs, k + STEP, inputs);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t a[TILES][2][PAIRS];
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i) {
        dequantize_word<T, BITS>(now.words[i].at[word], now.scale[i], now.bias[i], a[i / 2][i % 2]);
      }
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        uint32_t b[PAIRS];
        order_row<BITS>(row[n][word].at, b);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
          for (int j = 0; j < PAIRS; j += 2) {
            uint32_t four[4] = {a[tile][0][j], a[tile][1][j], a[tile][0][j + 1], a[tile][1][j + 1]};
            Product<T>::add(c[tile][n], four, b[j], b[j + 1]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][8 * n + 2 * t + i % 2][16 * tile + g + i / 2 * 8] = c[tile][n][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * EIGHTS * OUTPUTS; i += THREADS) {
    int row = i / OUTPUTS, output = i % OUTPUTS;
    float sum = 0.0f;
#pragma unroll
    for (int each = 0; each < WARPS; ++each) sum += sums[each][row][output];
    if (first_row + row < rows && first + output < outputs) {
      out[int64_t(first_row + row) * outputs + first + output] = static_cast<T>(sum);
    }
  }
}
