// A few queries of one sequence over affinely quantized K and V; comes behind quantized.cu.
//
// A block takes one chunk of the tokens for some rows of queries, at most 128, that share a KV head. It goes through
// the chunk by tiles: K and V of a tile are dequantized into shared memory, each warp multiplies them with its 16 rows
// on tensor cores, and keeps a running softmax (Dao, 2023, "FlashAttention-2"). It leaves what quantized.cu says. Words
// of the next tile are on their way meanwhile.
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

  __device__ __forceinline__ void fetch(const Side<T>& side, int first, int last) {
#pragma unroll
    for (int c = 0; c < SHARE; ++c) {
      int i = c * THREADS + threadIdx.x, token = min(first + i / UNITS, last), unit = i % UNITS;
      packed[c].load(side.words + token * side.words_step, unit);
      scale[c] = side.scales[token * side.scales_step + unit * PER / GROUP];
      bias[c] = side.biases[token * side.biases_step + unit * PER / GROUP];
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

// Rotates a row of queries as four lanes have it for a product's A: of each 16 columns 2t, 2t + 1, 2t + 8 and 2t + 9.
template <int WIDTH, int BLOCK>
__device__ __forceinline__ void rotate_fragments(float (&x)[WIDTH / 16][2][2], int t) {
#pragma unroll
  for (int k = 0; k < WIDTH / 16; ++k) {
#pragma unroll
    for (int right = 0; right < 2; ++right) {
      int column = 16 * k + 8 * right + 2 * t;
      float even = with_sign(x[k][right][0], column), odd = with_sign(x[k][right][1], column + 1);
      x[k][right][0] = butterfly(butterfly(even + odd, 1), 2);
      x[k][right][1] = butterfly(butterfly(even - odd, 1), 2);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float left = x[k][0][i] * inverse_root(BLOCK), right = x[k][1][i] * inverse_root(BLOCK);
      x[k][0][i] = left + right;
      x[k][1][i] = left - right;
    }
  }
#pragma unroll
  for (int apart = 1; apart < BLOCK / 16; apart *= 2) {
#pragma unroll
    for (int k = 0; k < WIDTH / 16; ++k) {
      if (k & apart) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float low = x[k][i / 2][i % 2], high = x[k + apart][i / 2][i % 2];
        x[k][i / 2][i % 2] = low + high;
        x[k + apart][i / 2][i % 2] = low - high;
      }
    }
  }
}

// Which tokens a query sees: the first `end` of them, those up to its own where `causal`, those that `at` names.
struct Visible {
  const bool* at;  // null: no mask
  int64_t query_step, token_step;
  bool causal;

  __device__ __forceinline__ bool operator()(int query, int own, int token, int end) const {
    if (token >= end || (causal && token > own)) return false;
    return at == nullptr || at[query * query_step + token * token_step];
  }
};

template <typename T, int K_BITS, int V_BITS, int GROUP, int K_WIDTH, int K_BLOCK, int V_WIDTH, int TILE>
__device__ void attend_rows(
    const T* queries, int64_t head_step, int64_t query_step, int64_t width_step,  // the first head's
    int n, float scale,                                                           // n queries of each head
    const Side<T>& keys, const Side<T>& values, Visible visible,
    int first_row, int end_row,                // rows count through heads and queries; they are rotated if K_BLOCK
    int start, int end, int tokens,            // of this chunk, and of all
    float* stats, float* out, int64_t step) {  // of the first head's first query; `step` chunks from row to row
  using Key = Fetched<T, K_BITS, GROUP, K_WIDTH, TILE>;
  using Value = Fetched<T, V_BITS, GROUP, V_WIDTH, TILE>;
  alignas(16) __shared__ T k_tile[TILE * Key::STEP];
  alignas(16) __shared__ T v_tile[TILE * Value::STEP];
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int mine = first_row + threadIdx.x / 32 * 16;
  bool active = mine < end_row;

  int query[2], own[2];  // of rows g and g + 8: the query, and the token that it stands at
  uint32_t a[K_WIDTH / 16][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = min(mine + g + 8 * half, end_row - 1);
    query[half] = row % n;
    own[half] = tokens - n + query[half];
    const T* from = queries + row / n * head_step + query[half] * query_step;
    float x[K_WIDTH / 16][2][2];
#pragma unroll
    for (int k = 0; k < K_WIDTH / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[k][i / 2][i % 2] = from[(16 * k + 8 * (i / 2) + 2 * t + i % 2) * width_step];
    }
    if constexpr (K_BLOCK != 0) rotate_fragments<K_WIDTH, K_BLOCK>(x, t);
#pragma unroll
    for (int k = 0; k < K_WIDTH / 16; ++k) {
#pragma unroll
      for (int right = 0; right < 2; ++right) a[k][half + 2 * right] = pair<T>(x[k][right][0], x[k][right][1]);
    }
  }

  float top[2] = {LEAST, LEAST}, sum[2] = {0, 0}, acc[V_WIDTH / 8][4] = {};
  Key key;
  Value value;
  key.fetch(keys, start, end - 1);
  value.fetch(values, start, end - 1);
  for (int at = start; at < end; at += TILE) {
    __syncthreads();  // All have read the tile before.
    key.put(k_tile);
    value.put(v_tile);
    __syncthreads();
    if (at + TILE < end) {
      key.fetch(keys, at + TILE, end - 1);
      value.fetch(values, at + TILE, end - 1);
    }
    if (!active) continue;

    float score[TILE / 8][4] = {};
#pragma unroll
    for (int k = 0; k < K_WIDTH / 16; ++k) {
#pragma unroll
      for (int j = 0; j < TILE / 8; ++j) {
        const T* b = k_tile + (8 * j + g) * Key::STEP + 16 * k + 2 * t;
        Product<T>::add(
            score[j], a[k], *reinterpret_cast<const uint32_t*>(b), *reinterpret_cast<const uint32_t*>(b + 8));
      }
    }
    bool all = visible.at == nullptr && at + TILE <= (visible.causal ? min(end, tokens - n + 1) : end);
    float most[2] = {top[0], top[1]};
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bool seen = all || visible(query[i / 2], own[i / 2], at + 8 * j + 2 * t + i % 2, end);
        score[j][i] = seen ? score[j][i] * scale : 2 * LEAST;
        most[i / 2] = fmaxf(most[i / 2], score[j][i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(ALL, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(ALL, most[half], 2));
      float factor = exp2f(top[half] - most[half]);
      top[half] = most[half];
      sum[half] *= factor;
#pragma unroll
      for (int j = 0; j < V_WIDTH / 8; ++j) {
        acc[j][2 * half] *= factor;
        acc[j][2 * half + 1] *= factor;
      }
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[j][i] = exp2f(score[j][i] - top[i / 2]);
        sum[i / 2] += score[j][i];
      }
    }
#pragma unroll
    for (int k = 0; k < TILE / 16; ++k) {
      uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = score[2 * k + i / 2] + i % 2 * 2;
        weights[i] = pair<T>(from[0], from[1]);
      }
#pragma unroll
      for (int j = 0; j < V_WIDTH / 16; ++j) {
        uint32_t b[4];
        load_transposed(b, v_tile + (16 * k + lane % 16) * Value::STEP + 16 * j + lane / 16 * 8);
        Product<T>::add(acc[2 * j], weights, b[0], b[1]);
        Product<T>::add(acc[2 * j + 1], weights, b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(ALL, sum[half], 1);
    sum[half] += __shfl_xor_sync(ALL, sum[half], 2);
    int64_t row = mine + g + 8 * half;
    if (row >= end_row) continue;
    if (t == 0) {
      stats[row * step * 2] = top[half];
      stats[row * step * 2 + 1] = sum[half];
    }
#pragma unroll
    for (int j = 0; j < V_WIDTH / 8; ++j) {
      float* to = out + row * step * V_WIDTH + 8 * j + 2 * t;
      to[0] = acc[j][2 * half];
      to[1] = acc[j][2 * half + 1];
    }
  }
}
