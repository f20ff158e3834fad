// Rows times the matrix of a KV head: the bases of codec.py within kernels, for so few rows that a launch costs more.

// Neighbours in a row, read as one.
template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) % 16 == 0 ? 16 : (COUNT * sizeof(T) & -(COUNT * sizeof(T)))) Neighbours {
  T x[COUNT];
};

// Copies 16 bytes to shared memory, on the way until `wait_for_copies`.
__device__ __forceinline__ void begin_copy(void* to, const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from));
#else
  *static_cast<Neighbours<uint32_t, 4>*>(to) = *static_cast<const Neighbours<uint32_t, 4>*>(from);
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

constexpr int largest_divisor(int of, int most) { return of % most == 0 ? most : largest_divisor(of, most - 1); }

// Shared memory in which a block of WARPS warps multiplies COUNT rows by a matrix [WIDTH, WIDTH], of which as many rows
// come at once as fit. Loops stay loops: code that runs once waits for each line of itself.
template <typename T, int WIDTH, int WARPS, int COUNT>
struct alignas(16) TimesMatrix {
  static constexpr int MOST = (32 << 10) / (WIDTH * int(sizeof(T))), OWN = WIDTH / 32, EACH = 16 / int(sizeof(T));
  static constexpr int STAGED = largest_divisor(WIDTH, MOST < WIDTH ? MOST : WIDTH);
  static_assert(WIDTH % 32 == 0, "each lane has as many columns");
  union {
    T staged[STAGED * WIDTH];
    float sums[WARPS * COUNT * WIDTH];
  };
  float rows[COUNT][WIDTH];

  // Has a part of the matrix come while other things are done.
  __device__ __forceinline__ void fetch(const T* matrix, int first = 0) {
#pragma unroll 4
    for (int i = threadIdx.x * EACH; i < STAGED * WIDTH; i += 32 * WARPS * EACH) {
      begin_copy(staged + i, matrix + first * WIDTH + i);
    }
  }

  // Multiplies `rows` by the matrix whose first part was fetched. All threads come here, and see the results when they
  // leave.
  __device__ __forceinline__ void multiply(const T* matrix) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float found[COUNT][OWN] = {};
    for (int first = 0; first < WIDTH; first += STAGED) {
      if (first > 0) fetch(matrix, first);
      wait_for_copies();
      __syncthreads();
#pragma unroll 4
      for (int i = warp; i < STAGED; i += WARPS) {
        auto of = *reinterpret_cast<const Neighbours<T, OWN>*>(staged + i * WIDTH + lane * OWN);
#pragma unroll
        for (int row = 0; row < COUNT; ++row) {
          float x = rows[row][first + i];
#pragma unroll
          for (int j = 0; j < OWN; ++j) found[row][j] += x * static_cast<float>(of.x[j]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int row = 0; row < COUNT; ++row) {
#pragma unroll
      for (int j = 0; j < OWN; ++j) sums[(warp * COUNT + row) * WIDTH + lane * OWN + j] = found[row][j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COUNT * WIDTH; i += 32 * WARPS) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) sum += sums[w * COUNT * WIDTH + i];
      rows[i / WIDTH][i % WIDTH] = sum;
    }
    __syncthreads();
  }
};

// COUNT rows of `given` elements, filled up with zeros, times `matrix`.
template <typename T, int WIDTH, int WARPS, int COUNT>
__device__ void turn_rows(
    TimesMatrix<T, WIDTH, WARPS, COUNT>& product, const T* from, int64_t row_step, int64_t step, int given,
    const T* matrix, T* to, int64_t to_step) {
  product.fetch(matrix);
  for (int i = threadIdx.x; i < COUNT * WIDTH; i += 32 * WARPS) {
    int row = i / WIDTH, at = i % WIDTH;
    product.rows[row][at] = at < given ? static_cast<float>(from[row * row_step + at * step]) : 0.0f;
  }
  product.multiply(matrix);
  for (int i = threadIdx.x; i < COUNT * WIDTH; i += 32 * WARPS) {
    to[i / WIDTH * to_step + i % WIDTH] = static_cast<T>(product.rows[i / WIDTH][i % WIDTH]);
  }
}
