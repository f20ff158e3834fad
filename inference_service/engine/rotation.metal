// The rotation of codec.py on Apple's GPUs, as rotation.cu has it on NVIDIA's: signs, then a Hadamard transform of each
// BLOCK neighbouring elements, a power of two from 32 on. SIGNS has a bit for each element, set where its sign is
// negative; metal_kernel.py declares it. Transforms leave the factor `inverse_root(BLOCK)` to their callers.

inline float inverse_root(int power_of_two) {
  return 1.0f / sqrt(static_cast<float>(power_of_two));
}

inline float with_sign(float x, int element) {
  return as_type<float>(as_type<uint32_t>(x) ^ SIGNS[element / 32] >> element % 32 << 31);
}

// One step between lanes: the sum, or for the upper lane the difference.
inline float butterfly(float x, int lane, int apart) {
  float other = simd_shuffle_xor(x, static_cast<ushort>(apart));
  return lane & apart ? other - x : x + other;
}

// A row of WIDTH elements over a simdgroup, of which a lane has every 32nd.
template <int WIDTH, int BLOCK>
inline void transform_row(thread float* x, int lane) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) x[j] = butterfly(x[j], lane, apart);
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
