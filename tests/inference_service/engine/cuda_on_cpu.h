// Enough of CUDA to run a kernel on the CPU, on the threads of threads_on_cpu.h.

#include <sys/mman.h>
#include <unistd.h>

#include "threads_on_cpu.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __constant__ static
#define __restrict__

using std::max;
using std::min;

// ---- 16-bit types

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {
    uint32_t all;
    memcpy(&all, &x, 4);
    bits = (all + 0x7FFF + (all >> 16 & 1)) >> 16;
  }
  operator float() const {
    uint32_t all = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &all, 4);
    return x;
  }
};

struct __half {
  _Float16 value;
  __half() = default;
  __half(float x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};

template <typename T>
struct Two {
  T x, y;
};
inline Two<__nv_bfloat16> __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline Two<__half> __floats2half2_rn(float x, float y) { return {x, y}; }
template <typename T>
Two<T> __hsub2(Two<T> x, Two<T> y) {
  return {float(x.x) - float(y.x), float(x.y) - float(y.y)};
}
template <typename T>
Two<T> __hfma2(Two<T> x, Two<T> y, Two<T> z) {
  return {fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y)};
}

struct uint4 {
  uint32_t x, y, z, w;
};

// ---- arithmetic on words

inline float __uint_as_float(uint32_t x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t y;
  memcpy(&y, &x, 4);
  return y;
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
  return (uint64_t(high) << 32 | low) >> (by & 31);
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  uint64_t bytes = uint64_t(y) << 32 | x;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return out;
}

// ---- threads

inline void __syncthreads() { wait_for_block(); }
inline void __syncwarp(unsigned = ~0u) { wait_for_warp(); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int lanes) {
  if (mask != ~0u) abort();
  return of_lane(x, current % 32 ^ lanes);
}

inline uint32_t __reduce_or_sync(unsigned mask, uint32_t x) {
  for (int apart = 16; apart > 0; apart /= 2) x |= __shfl_xor_sync(mask, x, apart);
  return x;
}

// ---- tensor cores: m16n8k16 and ldmatrix, as PTX describes how lanes hold matrices

template <typename T>
float element(uint32_t word, int which) {
  T both[2];
  memcpy(both, &word, 4);
  return both[which];
}

template <typename T>
void add_product(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  exchanged[current] = {a[0], a[1], a[2], a[3], b0, b1};
  __syncwarp();
  auto* lanes = exchanged + current / 32 * 32;
  int group = current % 32 / 4, own = current % 4;
  for (int i = 0; i < 4; ++i) {
    int row = group + i / 2 * 8, column = 2 * own + i % 2;
    for (int k = 0; k < 16; ++k) {
      auto& left = lanes[row % 8 * 4 + k % 8 / 2];
      auto& right = lanes[column * 4 + k % 8 / 2];
      c[i] += element<T>(left[row / 8 + k / 8 * 2], k % 2) * element<T>(right[4 + k / 8], k % 2);
    }
  }
  __syncwarp();
}
#define ADD_PRODUCT(type, c, a, b0, b1) \
  add_product<std::conditional_t<type[0] == 'b', __nv_bfloat16, __half>>(c, a, b0, b1)

inline void load_transposed(uint32_t* b, const void* half_row) {
  memcpy(&exchanged[current], &half_row, sizeof half_row);
  __syncwarp();
  auto* lanes = exchanged + current / 32 * 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t two[2];
    for (int i = 0; i < 2; ++i) {
      const uint16_t* row;
      memcpy(&row, &lanes[matrix * 8 + current % 4 * 2 + i], sizeof row);
      if (reinterpret_cast<uintptr_t>(row) % 16) abort();
      two[i] = row[current % 32 / 4];
    }
    memcpy(b + matrix, two, 4);
  }
  __syncwarp();
}

// A copy of an array, behind which lies a page that must not be touched; aligned to 16 bytes.
struct Guarded {
  size_t page = sysconf(_SC_PAGESIZE), room;
  char* from;
  void* data;

  Guarded(const void* source, size_t bytes) : room((bytes + 15 + page) / page * page) {
    from = static_cast<char*>(mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(from + room, page, PROT_NONE);
    data = from + (room - bytes) / 16 * 16;
    memcpy(data, source, bytes);
  }
  ~Guarded() { munmap(from, room + page); }
};
