// Products of a few rows with quantized weights, on tensor cores; comes behind tiles.cu.
//
// A block computes OUTPUTS columns of the result for up to 8 * EIGHTS rows. Its warps divide K between them, because
// there are fewer blocks than multiprocessors otherwise, and add their sums in shared memory. Weights are matrix A, and
// the rows are matrix B. Which column of A is which element of K does not matter as long as it is the same of B: so a
// lane loads 16 bytes of a row of weights, neighbouring elements of K, and gives four of them to each product.

constexpr int OUTPUTS = 32, WARPS = THREADS / 32, QUARTER = OUTPUTS / 4;

// What one lane needs of the weights: of the outputs first + g, first + 8 + g and so on, PER elements of K from `k` on.
template <typename T, int BITS, int GROUP>
struct Weights {
  static constexpr int PER = 128 / BITS, OF_WORD = 32 / BITS;
  static_assert(GROUP % PER == 0, "a lane's elements are not of one group");

  Words<4> words[4];
  T scale[4], bias[4];

  __device__ __forceinline__ void fetch(
      const uint32_t* all_words, const T* scales, const T* biases, int first, int outputs, int k, int inputs) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (k < inputs) {
        int64_t output = min(first + QUARTER * i, outputs - 1), at = output * (inputs / GROUP) + k / GROUP;
        const uint32_t* row = all_words + output * (inputs / OF_WORD) + k / OF_WORD;
        words[i] = *reinterpret_cast<const Words<4>*>(row);
        scale[i] = scales[at];
        bias[i] = biases[at];
      } else {  // weights of zero
        words[i] = {};
        scale[i] = bias[i] = static_cast<T>(0.0f);
      }
    }
  }
};

// x [rows, inputs] by weights [outputs, inputs], both with contiguous rows, to out [rows, outputs].
template <typename T, int BITS, int GROUP, int EIGHTS>
__device__ void multiply_few(
    const T* x, int64_t x_step, int rows, const uint32_t* words, const T* scales, const T* biases, int inputs,
    int outputs, T* out) {
  using Own = Weights<T, BITS, GROUP>;
  constexpr int PER = Own::PER, OF_WORD = 32 / BITS, STEP = WARPS * 4 * PER;
  __shared__ float sums[WARPS][8 * EIGHTS][OUTPUTS + 4];  // 4 more, so that a warp's sums lie in different banks
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int first = blockIdx.x * OUTPUTS, first_row = blockIdx.y * 8 * EIGHTS;

  float c[2][EIGHTS][4] = {};
  int k = (warp * 4 + t) * PER;
  Own now;
  now.fetch(words, scales, biases, first + g, outputs, k, inputs);
  for (int turn = warp * 4 * PER; turn < inputs; turn += STEP, k += STEP) {
    Own next;
    next.fetch(words, scales, biases, first + g, outputs, k + STEP, inputs);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      Words<OF_WORD / 2> b[EIGHTS];
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        const T* row = x + min(first_row + 8 * n + g, rows - 1) * x_step;
        b[n] = *reinterpret_cast<const Words<OF_WORD / 2>*>(row + (k < inputs ? k : 0) + word * OF_WORD);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[OF_WORD / 2][2];  // pairs of elements, of two outputs
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          int i = 2 * half + of;
          float w[OF_WORD], by = now.scale[i], plus = now.bias[i];
          unpack<BITS>(now.words[i].at[word], w);
#pragma unroll
          for (int j = 0; j < OF_WORD / 2; ++j) {
            a[j][of] = pair<T>(fmaf(by, w[2 * j], plus), fmaf(by, w[2 * j + 1], plus));
          }
        }
#pragma unroll
        for (int j = 0; j < OF_WORD / 2; j += 2) {
          uint32_t four[4] = {a[j][0], a[j][1], a[j + 1][0], a[j + 1][1]};
#pragma unroll
          for (int n = 0; n < EIGHTS; ++n) Product<T>::add(c[half][n], four, b[n].at[j], b[n].at[j + 1]);
        }
      }
    }
    now = next;
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][8 * n + 2 * t + i % 2][16 * half + g + i / 2 * 8] = c[half][n][i];
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
