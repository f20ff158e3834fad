// The threads of a GPU's kernel on the CPU, block after block: they are fibers that take turns at barriers and wherever
// they exchange values, in an order that changes from turn to turn, and now and then a warp is held until all others
// wait, so that a missing barrier shows.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

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

struct Dim3 {
  unsigned x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

constexpr size_t STACK_BYTES = 256 << 10;
struct Fiber {
  ucontext_t context;
  jmp_buf at;
  std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
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
inline void wait_for_block() { wait(block_barrier, threads()); }
inline void wait_for_warp() { wait(warp_barriers[current / 32], std::min(32u, threads() - current / 32 * 32)); }

// What another lane of the warp has.
template <typename T>
T of_lane(T x, unsigned lane) {
  memcpy(&exchanged[current], &x, sizeof x);
  wait_for_warp();
  memcpy(&x, &exchanged[current / 32 * 32 + lane], sizeof x);
  wait_for_warp();
  return x;
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
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, begin, 0);
    fiber.begun = fiber.done = false;
  }
  const unsigned warps = (threads() + 31) / 32;
  unsigned held = warps;  // none
  while (!std::all_of(fibers.begin(), fibers.end(), [](const Fiber& fiber) { return fiber.done; })) {
    unsigned long before = events;
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[rand() % (i + 1)]);
    for (turn = 0; turn < order.size(); ++turn) {
      current = order[turn];
      Fiber& fiber = fibers[current];
      if (fiber.done || current / 32 == held) continue;
      threadIdx = {current % blockDim.x, current / blockDim.x % blockDim.y, current / blockDim.x / blockDim.y};
      if (_setjmp(scheduler)) continue;
      if (fiber.begun) _longjmp(fiber.at, 1);
      fiber.begun = true;
      setcontext(&fiber.context);
    }
    if (events == before && held == warps) return false;
    if (events == before) {
      held = warps;
    } else if (held == warps && rand() % 2) {
      held = rand() % warps;
    }
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
