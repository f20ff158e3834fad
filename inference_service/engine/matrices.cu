// Rows times the matrix of a KV head on tensor cores: the bases of codec.py within kernels; comes after tiles.cu, which
// says how a warp holds matrices.

// Copies 16 bytes to shared memory, on the way until `wait_for_copies`.
__device__ __forceinline__ void begin_copy(void* to, const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from));
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

constexpr int sixteens_within(int of, int most) {
  return of % most == 0 && most % 16 == 0 ? most : sixteens_within(of, most - 1);
}

// Eight elements, of which the first `count` are there and the others zeros; in one go where they lie side by side.
template <typename T>
__device__ __forceinline__ void load_eight(T (&x)[8], const T* from, int64_t step, int count) {
  if (count >= 8 && step == 1 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(from);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = j < count ? from[j * step] : static_cast<T>(0.0f);
}

// Shared memory in which a block of WARPS warps multiplies TILES times 16 rows by a matrix [WIDTH, WIDTH], of which as
// many rows come at once as fit.
template <typename T, int WIDTH, int WARPS, int TILES>
struct alignas(16) TimesMatrix {
  static constexpr int STEP = WIDTH + 8;  // 16 bytes more than a row, so that a column's rows lie in different banks
  static constexpr int COUNT = 16 * TILES, MOST = (44 << 10) / (2 * STEP) - COUNT;
  static constexpr int STAGED = sixteens_within(WIDTH, MOST < WIDTH ? MOST : WIDTH);
  static constexpr int STRIPES = (WIDTH / 16 + WARPS - 1) / WARPS;  // of 16 columns, for a warp
  static_assert(WIDTH % 32 == 0 && sizeof(T) == 2, "there are whole tiles");
  T rows[COUNT * STEP];
  union {
    T staged[STAGED * STEP];
    float out[COUNT][WIDTH];
  };

  // Has a part of the matrix come while other things are done.
  __device__ __forceinline__ void fetch(const T* matrix, int first = 0) {
    constexpr int EACH = 8, IN_ROW = WIDTH / EACH;
#pragma unroll 4
    for (int i = threadIdx.x; i < STAGED * IN_ROW; i += 32 * WARPS) {
      begin_copy(staged + i / IN_ROW * STEP + i % IN_ROW * EACH, matrix + first * WIDTH + i * EACH);
    }
  }

  // Fills `rows` with those of `given` elements that `row_of` finds, filled up with zeros, less `mean` if there is one.
  // Those that it does not find are zeros, too.
  template <typename RowOf>
  __device__ __forceinline__ void fill(
      const RowOf& row_of, int64_t step, int given, const T* mean = nullptr, int64_t mean_step = 0) {
    constexpr int EACH = 8, IN_ROW = WIDTH / EACH;
#pragma unroll 4
    for (int i = threadIdx.x; i < COUNT * IN_ROW; i += 32 * WARPS) {
      const T* row = row_of(i / IN_ROW);
      int at = i % IN_ROW * EACH;
      alignas(16) T x[EACH], less[EACH];
      load_eight(x, row + at * step, step, row == nullptr ? 0 : given - at);
      if (mean != nullptr) {
        load_eight(less, mean + at * mean_step, mean_step, EACH);
#pragma unroll
        for (int j = 0; j < EACH; ++j) x[j] = static_cast<T>(static_cast<float>(x[j]) - static_cast<float>(less[j]));
      }
      *reinterpret_cast<uint4*>(rows + i / IN_ROW * STEP + at) = *reinterpret_cast<const uint4*>(x);
    }
  }

  // Multiplies `rows` by the matrix whose first part was fetched, and calls `put` with a row, a column, and the elements
  // there and next to it. All threads come here; `out` may be written to.
  template <typename Put>
  __device__ __forceinline__ void multiply(const T* matrix, const Put& put) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float acc[STRIPES][TILES][2][4] = {};
    for (int first = 0; first < WIDTH; first += STAGED) {
      if (first > 0) fetch(matrix, first);
      wait_for_copies();
      __syncthreads();
#pragma unroll 2
      for (int k = 0; k < STAGED; k += 16) {
#pragma unroll
        for (int stripe = 0; stripe < STRIPES; ++stripe) {
          int column = 16 * (stripe * WARPS + warp);
          if (column >= WIDTH) break;
          uint32_t b[4];
          load_transposed(b, staged + (k + lane % 16) * STEP + column + lane / 16 * 8);
#pragma unroll
          for (int tile = 0; tile < TILES; ++tile) {
            const T* from = rows + (16 * tile + g) * STEP + first + k + 2 * t;
            uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              a[i] = *reinterpret_cast<const uint32_t*>(from + i % 2 * 8 * STEP + i / 2 * 8);
            }
            Product<T>::add(acc[stripe][tile][0], a, b[0], b[1]);
            Product<T>::add(acc[stripe][tile][1], a, b[2], b[3]);
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int stripe = 0; stripe < STRIPES; ++stripe) {
#pragma unroll
      for (int i = 0; i < 4 * TILES; ++i) {
        int tile = i / 4, right = i / 2 % 2, half = i % 2, column = 16 * (stripe * WARPS + warp) + 8 * right + 2 * t;
        const float* x = acc[stripe][tile][right] + 2 * half;
        if (column < WIDTH) put(16 * tile + g + 8 * half, column, x[0], x[1]);
      }
    }
  }

  // The same, into `out`, which all threads see when they leave.
  __device__ __forceinline__ void multiply(const T* matrix) {
    multiply(matrix, [&](int row, int column, float x, float y) {
      out[row][column] = x;
      out[row][column + 1] = y;
    });
    __syncthreads();
  }
};
