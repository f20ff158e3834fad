// Enough of Metal to run a kernel on the CPU, on the threads of threads_on_cpu.h: one launch, read from a file. What is
// C++ but not Metal is left out where that is possible: conversions of 16-bit types are spelled out, and address spaces
// are for tests that read the source.

#pragma once

#include "threads_on_cpu.h"

using ushort = uint16_t;
using uint = uint32_t;
struct uint3 {
  uint x, y, z;
};

struct bfloat {
  uint16_t bits;
  bfloat() = default;
  explicit bfloat(float x) {
    uint32_t all;
    memcpy(&all, &x, 4);
    bits = (all + 0x7FFF + (all >> 16 & 1)) >> 16;
  }
  explicit operator float() const {
    uint32_t all = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &all, 4);
    return x;
  }
};
using bfloat16_t = bfloat;

struct half {
  _Float16 value;
  half() = default;
  explicit half(float x) : value(static_cast<_Float16>(x)) {}
  explicit operator float() const { return static_cast<float>(value); }
};
using float16_t = half;

namespace metal {

inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }
inline float max(float x, float y) { return x < y ? y : x; }
inline float sqrt(float x) { return std::sqrt(x); }
inline float exp2(float x) { return std::exp2(x); }
inline uint32_t popcount(uint32_t x) { return __builtin_popcount(x); }

template <typename To, typename From>
To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

enum class mem_flags { mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { wait_for_block(); }

template <typename T>
T simd_shuffle_xor(T x, ushort lanes) {
  return of_lane(x, current % 32 ^ lanes);
}
inline float simd_sum(float x) {
  for (int apart = 16; apart > 0; apart /= 2) x += simd_shuffle_xor(x, apart);
  return x;
}
inline float simd_max(float x) {
  for (int apart = 16; apart > 0; apart /= 2) x = max(x, simd_shuffle_xor(x, apart));
  return x;
}

}  // namespace metal
using namespace metal;

// ---- memory of a threadgroup: NaN where a threadgroup begins

struct ThreadgroupArray {
  void* data;
  size_t bytes;

  template <typename T, size_t N>
  explicit ThreadgroupArray(T (&array)[N]) : data(array), bytes(sizeof array) {
    all().push_back(*this);
    memset(data, 0xFF, bytes);
  }
  static std::vector<ThreadgroupArray>& all() {
    static std::vector<ThreadgroupArray> found;
    return found;
  }
};

// ---- one launch: blocks, threads of each, inputs with ten axes, and sizes of outputs; the outputs, and bytes of memory

struct Input {
  int32_t shape[10];
  int64_t strides[10];
  void* data;
};
static std::vector<Input> inputs;
static std::vector<void*> outputs;

void call_kernel();

template <typename T>
void read(FILE* file, T* into, size_t count = 1) {
  if (fread(into, sizeof(T), count, file) != count) abort();
}

int main(int, char** names) {
  FILE* file = fopen(names[1], "rb");
  Dim3 grid, block;
  read(file, &grid);
  read(file, &block);
  uint64_t count, bytes;
  read(file, &count);
  inputs.resize(count);
  for (Input& input : inputs) {
    read(file, &bytes);
    read(file, input.shape, 10);
    read(file, input.strides, 10);
    input.data = malloc(bytes);
    read(file, static_cast<char*>(input.data), bytes);
  }
  read(file, &count);
  std::vector<uint64_t> sizes(count);
  read(file, sizes.data(), count);
  for (uint64_t size : sizes) outputs.push_back(memset(malloc(size), 0xFF, size));
  body = call_kernel;
  fresh_block = [] {
    for (ThreadgroupArray& each : ThreadgroupArray::all()) memset(each.data, 0xFF, each.bytes);
  };
  if (!run(grid, block)) {
    fputs("threads wait for a barrier that not all of them reach\n", stderr);
    return 1;
  }
  FILE* results = fopen(names[2], "wb");
  for (size_t i = 0; i < count; ++i) fwrite(outputs[i], 1, sizes[i], results);
  bytes = 0;
  for (ThreadgroupArray& each : ThreadgroupArray::all()) bytes += each.bytes;
  fwrite(&bytes, sizeof bytes, 1, results);
  return fclose(results);
}

#define device
#define constant
#define thread
#define threadgroup
