// What kernels on tensor cores share: tiles of packed K and V in shared memory, and products with them; comes behind
// quantized.cu.
//
// How m16n8k16 spreads its matrices over a warp: with g = lane / 4 and t = lane % 4, a lane has of A the rows g and
// g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9; of B the rows 2t, 2t + 1, 2t + 8, 2t + 9, column g; of C the rows g and
// g + 8, columns 2t, 2t + 1. So the scores of one product are the weights of the next without leaving their lane.

constexpr int THREADS = 256;

// A product on tensor cores, C += A B, of two 16-bit types; PTX names the type.
#define ADD_PRODUCT(type, c, a, b0, b1)                                                                   \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                     \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                               \
               : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])                                   \
               : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))

template <typename T>
struct Product;

template <>
struct Product<__nv_bfloat16> {
  static __device__ __forceinline__ auto round(float x, float y) { return __floats2bfloat162_rn(x, y); }
  static __device__ __forceinline__ void add(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    ADD_PRODUCT("bf16", c, a, b0, b1);
  }
};

template <>
struct Product<__half> {
  static __device__ __forceinline__ auto round(float x, float y) { return __floats2half2_rn(x, y); }
  static __device__ __forceinline__ void add(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    ADD_PRODUCT("f16", c, a, b0, b1);
  }
};

// Two neighbouring elements of a matrix, as the instruction takes them.
template <typename T>
__device__ __forceinline__ uint32_t pair(float x, float y) {
  auto both = Product<T>::round(x, y);
  return *reinterpret_cast<uint32_t*>(&both);
}

// Two neighbouring B matrices of 16 rows out of shared memory, where they lie by rows; each lane names half a row.
__device__ __forceinline__ void load_transposed(uint32_t* b, const void* half_row) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(half_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at)
               : "memory");
}

// A thread's share of a tile of K or V: units with their scales and biases, fetched first and dequantized later.
template <typename T, int BITS, int GROUP, int WIDTH, int TILE>
struct Fetched {
  static constexpr int PER = UNIT<BITS>, UNITS = WIDTH / PER, SHARE = (TILE * UNITS + THREADS - 1) / THREADS;
  static constexpr int STEP = WIDTH + 8;  // 16 bytes more than a row, so that a column's rows lie in different banks
  static_assert(WIDTH % 16 == 0 && GROUP % PER == 0, "the row does not split so");

  Packed<BITS, 1> packed[SHARE];
  T scale[SHARE], bias[SHARE];

  template <typename Side>
  __device__ __forceinline__ void fetch(const Side& side, int first, int last) {
#pragma unroll
    for (int c = 0; c < SHARE; ++c) {
      int i = c * THREADS + threadIdx.x, token = min(first + i / UNITS, last), unit = i % UNITS;
      packed[c].load(side.words_of(token), unit);
      scale[c] = side.scales_of(token)[unit * PER / GROUP];
      bias[c] = side.biases_of(token)[unit * PER / GROUP];
    }
  }

  __device__ __forceinline__ void put(T* tile) {
#pragma unroll
    for (int c = 0; c < SHARE; ++c) {
      int i = c * THREADS + threadIdx.x;
      if (i >= TILE * UNITS) break;
      float x[PER], by = scale[c], plus = bias[c];
      packed[c].align(i % UNITS);
      packed[c].unpack_unit(0, x);
      Words<PER / 2> out;
#pragma unroll
      for (int k = 0; k < PER / 2; ++k) {
        out.at[k] = pair<T>(fmaf(by, x[2 * k], plus), fmaf(by, x[2 * k + 1], plus));
      }
      *reinterpret_cast<Words<PER / 2>*>(tile + i / UNITS * STEP + i % UNITS * PER) = out;
    }
  }
};

// Which tokens a query sees: the first `end` of them, those up to its own where `causal`, of these the last `window`,
// and those that `at` names.
struct Visible {
  const bool* at;  // null: no mask
  int64_t query_step, token_step;
  bool causal;
  int window = 0;  // 0: there is none

  __device__ __forceinline__ bool operator()(int query, int own, int token, int end) const {
    if (token >= end || (causal && token > own) || (window && token <= own - window)) return false;
    return at == nullptr || at[query * query_step + token * token_step];
  }
};
