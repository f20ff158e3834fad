// Enough of Metal for clang to check what kernels do with address spaces; nothing of it runs.

#pragma once

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread

using int32_t = int;
using int64_t = long;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using ushort = uint16_t;
using uint = uint32_t;
struct uint3 {
  uint x, y, z;
};

// Whatever 16 bits: which of them they are is of no account here.
using bfloat16_t = _Float16;
using float16_t = _Float16;

namespace metal {

int min(int, int);
int max(int, int);
float max(float, float);
float sqrt(float);
float exp2(float);
uint32_t popcount(uint32_t);

template <typename To, typename From>
To as_type(From);

enum class mem_flags { mem_threadgroup };
void threadgroup_barrier(mem_flags);

float simd_shuffle_xor(float, ushort);
float simd_sum(float);
float simd_max(float);

}  // namespace metal
using namespace metal;
