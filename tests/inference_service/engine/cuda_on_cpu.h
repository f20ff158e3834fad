// Enough of CUDA to run a kernel on the CPU, block after block: threads are fibers that take turns at barriers,
// shuffles and tensor cores, in an order that changes from turn to turn, so that a missing barrier shows.

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __constant__ static
#define __restrict__

using std::max;
using std::min;

struct Dim3 {
  unsigned x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

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

struct Fiber {
  ucontext_t context;
  jmp_buf at;
  std::vector<char> stack = std::vector<char>(256 << 10);
  bool begun = false, done = false;
};
static std::vector<Fiber> fibers;
static std::function<void()> body;
static jmp_buf scheduler;
static unsigned current;
static unsigned long events;  // arrivals at barriers and ends of threads: without any, all wait for ever

struct Barrier {
  unsigned arrived = 0, round = 0;
};
static Barrier block_barrier, warp_barriers[32];
static std::array<uint32_t, 16> exchanged[1024];  // what a thread shows its warp

__attribute__((noinline)) void yield() {
  if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
}
inline void wait(Barrier& barrier, unsigned threads) {
  unsigned round = barrier.round;
  ++events;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.round;
  }
  while (barrier.round == round) yield();
}
inline unsigned threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline void __syncthreads() { wait(block_barrier, threads()); }
inline void __syncwarp(unsigned = ~0u) { wait(warp_barriers[current / 32], min(32u, threads() - current / 32 * 32)); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int lanes) {
  if (mask != ~0u) abort();
  memcpy(&exchanged[current], &x, sizeof x);
  __syncwarp();
  memcpy(&x, &exchanged[current ^ lanes], sizeof x);
  __syncwarp();
  return x;
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

// ---- launches

static std::vector<unsigned> order;
static size_t turn;

static void begin() {
  body();
  fibers[current].done = true;
  ++events;
  _longjmp(scheduler, 1);
}

// All threads of one block, to their ends. False: all that are left wait, and for what never comes.
static bool run_block() {
  for (Fiber& fiber : fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, begin, 0);
    fiber.begun = fiber.done = false;
  }
  while (!std::all_of(fibers.begin(), fibers.end(), [](const Fiber& fiber) { return fiber.done; })) {
    unsigned long before = events;
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[rand() % (i + 1)]);
    for (turn = 0; turn < order.size(); ++turn) {
      current = order[turn];
      Fiber& fiber = fibers[current];
      if (fiber.done) continue;
      threadIdx = {current % blockDim.x, current / blockDim.x % blockDim.y, current / blockDim.x / blockDim.y};
      if (_setjmp(scheduler)) continue;
      if (fiber.begun) _longjmp(fiber.at, 1);
      fiber.begun = true;
      setcontext(&fiber.context);
    }
    if (events == before) return false;
  }
  return true;
}

static bool run(Dim3 grid, Dim3 block) {
  gridDim = grid;
  blockDim = block;
  fibers.resize(threads());
  order.resize(threads());
  for (unsigned i = 0; i < threads(); ++i) order[i] = i;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        if (!run_block()) return false;
      }
    }
  }
  return true;
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
