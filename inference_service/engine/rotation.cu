// The rotation of codec.py: signs, then a Hadamard transform of each BLOCK neighbouring elements, a power of two from
// 32 on. SIGNS has a bit for each element, set where its sign is negative; cuda_kernel.py declares it. Transforms leave
// the factor `inverse_root(BLOCK)` to their callers.

constexpr unsigned ALL = 0xFFFFFFFFu;

__device__ constexpr float inverse_root(int power_of_two) {
  return power_of_two == 1 ? 1.0f : power_of_two == 2 ? 0.70710678f : inverse_root(power_of_two / 4) / 2;
}

__device__ __forceinline__ float with_sign(float x, int element) {
  return __uint_as_float(__float_as_uint(x) ^ SIGNS[element / 32] >> element % 32 << 31);
}

// One step between lanes: the sum, or for the upper lane the difference.
__device__ __forceinline__ float butterfly(float x, int apart) {
  float other = __shfl_xor_sync(ALL, x, apart);
  return threadIdx.x & apart ? other - x : x + other;
}

// A row of WIDTH elements over a warp, of which a lane has every 32nd.
template <int WIDTH, int BLOCK>
__device__ __forceinline__ void transform_row(float (&x)[WIDTH / 32]) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) x[j] = butterfly(x[j], apart);
  }
#pragma unroll
  for (int apart = 1; apart < BLOCK / 32; apart *= 2) {
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) {
      if (j & apart) continue;
      float low = x[j], high = x[j + apart];
      x[j] = low + high;
      x[j + apart] = low - high;
    }
  }
}
