// The chunks that kernels leave as one; comes after rotation.cu and matrices.cu.

// A row of WIDTH elements over a block of WIDTH threads, of which each has one.
template <int WIDTH, int BLOCK>
__device__ __forceinline__ float transformed(float x) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) x = butterfly(x, apart);
  if constexpr (BLOCK > 32) {
    __shared__ float row[WIDTH];
    row[threadIdx.x] = x;
    __syncthreads();
    int first = threadIdx.x / BLOCK * BLOCK + threadIdx.x % 32, own = threadIdx.x % BLOCK / 32;
    x = 0;
#pragma unroll
    for (int j = 0; j < BLOCK / 32; ++j) x += __popc(own & j) % 2 ? -row[first + 32 * j] : row[first + 32 * j];
  }
  return x;
}

// Products of queries with vectors, of each WIDTH threads of a block one, which they all get.
template <typename T, int WIDTH, int THREADS, int HEADS>
__device__ __forceinline__ float product(const T* query, int64_t query_step, const T* vector, int64_t vector_step) {
  constexpr int WARPS = THREADS / 32;
  __shared__ float sums[HEADS * WARPS];
  float sum = 0;
  for (int i = threadIdx.x % THREADS; i < WIDTH; i += THREADS) {
    sum += static_cast<float>(query[i * query_step]) * static_cast<float>(vector[i * vector_step]);
  }
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(ALL, sum, apart);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += sums[threadIdx.x / THREADS * WARPS + w];
  return sum;
}

// Outputs of HEADS neighbouring heads from their chunks, out of the packed basis: by a rotation if BLOCK is not 0, by
// the matrix `back` [V_WIDTH, V_WIDTH] if BASED; a thread for each element. The logit of a sink, times log2(e), takes
// part in the softmax's sum and in nothing else; the mean of V is weighted with what it leaves.
template <typename T, int V_WIDTH, int BLOCK, int HEADS, bool BASED>
__device__ void merge_chunks(
    const float* stats, const float* partial, int chunks,  // of the thread's head
    const float* sink, const T* mean, int64_t mean_step, const T* back, T* out) {
  static_assert(V_WIDTH % 32 == 0 && (HEADS == 1 || BLOCK == 0), "each warp is whole");
  int own = threadIdx.x % V_WIDTH;
  float own_mean = mean == nullptr ? 0.0f : static_cast<float>(mean[own * mean_step]);
  float top = sink == nullptr ? LEAST : *sink, total = 0, x = 0;
  auto weigh = [&] {  // A chunk for each lane, in all warps alike.
    for (int c = threadIdx.x % 32; c < chunks; c += 32) top = fmaxf(top, stats[2 * c]);
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, apart));
    for (int c = threadIdx.x % 32; c < chunks; c += 32) total += exp2f(stats[2 * c] - top) * stats[2 * c + 1];
    for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(ALL, total, apart);
#pragma unroll 8
    for (int c = 0; c < chunks; ++c) {
      if (stats[2 * c + 1] > 0) x += exp2f(stats[2 * c] - top) * partial[c * V_WIDTH + own];
    }
  };
  if constexpr (BASED) {
    using Basis = TimesMatrix<T, V_WIDTH, V_WIDTH * HEADS / 32, 1>;
    __shared__ Basis basis;
    basis.fetch(back);
    for (int i = threadIdx.x; i < Basis::COUNT * Basis::STEP; i += V_WIDTH * HEADS) basis.rows[i] = 0.0f;
    weigh();
    __syncthreads();
    // Divided, it is within the range of 16 bits; beside a sink that takes all, there is nothing to divide.
    basis.rows[threadIdx.x / V_WIDTH * Basis::STEP + own] = static_cast<T>(total > 0 ? x / total : 0.0f);
    basis.multiply(back);
    x = basis.out[threadIdx.x / V_WIDTH][own] * total;
  } else {
    weigh();
    if constexpr (BLOCK != 0) x = with_sign(transformed<V_WIDTH, BLOCK>(x) * inverse_root(BLOCK), own);
  }
  if (mean != nullptr) x += total * own_mean;
  if (sink != nullptr) total += exp2f(*sink - top);
  out[own] = static_cast<T>(x / total);
}
