// Rows times the matrix of a KV head: the bases of codec.py within kernels, for so few rows that a launch costs more.

// Neighbours in a row, read as one.
template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) % 16 == 0 ? 16 : (COUNT * sizeof(T) & -(COUNT * sizeof(T)))) Neighbours {
  T x[COUNT];
};

// Multiplies ROWS rows of shared memory by `matrix` [WIDTH, WIDTH], with all WARPS warps of the block, each of which
// takes every WARPSth element of the rows; `sums` is room for WARPS times as many floats. All threads come here, and
// see the results when they leave.
template <typename T, int WIDTH, int WARPS, int ROWS>
__device__ __forceinline__ void times_matrix(float (&rows)[ROWS][WIDTH], const T* matrix, float* sums) {
  constexpr int OWN = WIDTH / 32;
  static_assert(WIDTH % 32 == 0, "each lane has as many columns");
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float found[ROWS][OWN] = {};
  __syncthreads();
#pragma unroll 16
  for (int i = warp; i < WIDTH; i += WARPS) {
    auto of = *reinterpret_cast<const Neighbours<T, OWN>*>(matrix + i * WIDTH + lane * OWN);
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
#pragma unroll
      for (int row = 0; row < ROWS; ++row) found[row][j] += rows[row][i] * static_cast<float>(of.x[j]);
    }
  }
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
#pragma unroll
    for (int j = 0; j < OWN; ++j) sums[(warp * ROWS + row) * WIDTH + lane * OWN + j] = found[row][j];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * WIDTH; i += 32 * WARPS) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += sums[w * ROWS * WIDTH + i];
    rows[i / WIDTH][i % WIDTH] = sum;
  }
  __syncthreads();
}
