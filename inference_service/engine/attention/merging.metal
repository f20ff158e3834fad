// The chunks that kernels leave as one; comes behind rotation.metal and quantized.metal. As merging.cu, a thread for
// each element of one head's output; `memory` has room for these.

// A row of WIDTH elements over a threadgroup of WIDTH threads, of which each has one.
template <int WIDTH, int BLOCK>
inline float transformed(float x, threadgroup float* memory, int thread_index, int lane) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) x = butterfly(x, lane, apart);
  if (BLOCK <= 32) return x;
  memory[thread_index] = x;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int own = thread_index % BLOCK, first = thread_index - own + own % 32;
  x = 0.0f;
#pragma unroll
  for (int j = 0; j < BLOCK / 32; ++j) {
    const float other = memory[first + 32 * j];
    x += popcount(static_cast<uint32_t>(own / 32 & j)) % 2 ? -other : other;
  }
  return x;
}

// A query's product with a vector, which all threads of the threadgroup get. Leaves `memory` free.
template <int WIDTH, int THREADS, typename T>
inline float product(
    const device T* query, int64_t query_step, const device T* vector, int64_t vector_step, threadgroup float* memory,
    int thread_index, int lane) {
  float sum = 0.0f;
  for (int i = thread_index; i < WIDTH; i += THREADS) {
    sum += static_cast<float>(query[i * query_step]) * static_cast<float>(vector[i * vector_step]);
  }
  sum = simd_sum(sum);
  if (lane == 0) memory[thread_index / 32] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0.0f;
#pragma unroll
  for (int s = 0; s < THREADS / 32; ++s) sum += memory[s];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sum;
}

// One head's output from its chunks, out of the packed basis if BLOCK is not 0. The logit of a sink, times log2(e),
// takes part in the softmax's sum and in nothing else; the mean of V is weighted with what it leaves.
template <int WIDTH, int BLOCK, bool SINK, typename T, typename Stats>
inline void merge_chunks(
    Stats stats, const device float* partial, int chunks, float sink, const device T* mean, int64_t mean_step,
    device T* out, threadgroup float* memory, int thread_index, int lane) {
  static_assert(WIDTH % 32 == 0, "each simdgroup is whole");
  float top = SINK ? sink : LEAST, total = 0.0f, x = 0.0f;
  // A chunk for each lane, in all simdgroups alike.
  for (int c = lane; c < chunks; c += 32) top = max(top, stats[2 * c]);
  top = simd_max(top);
  for (int c = lane; c < chunks; c += 32) total += exp2(stats[2 * c] - top) * stats[2 * c + 1];
  total = simd_sum(total);
  for (int c = 0; c < chunks; ++c) {
    if (stats[2 * c + 1] > 0.0f) x += exp2(stats[2 * c] - top) * partial[c * WIDTH + thread_index];
  }
  if (BLOCK != 0) {
    x = with_sign(transformed<WIDTH, BLOCK>(x, memory, thread_index, lane) * inverse_root(BLOCK), thread_index);
  }
  if (mean != nullptr) x += total * static_cast<float>(mean[thread_index * mean_step]);
  if (SINK) total += exp2(sink - top);
  out[thread_index] = static_cast<T>(x / total);
}
