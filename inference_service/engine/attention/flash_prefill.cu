// Queries of one sequence over affinely quantized K and V; comes behind tiles.cu.
//
// A block takes one chunk of the tokens for some rows of queries, at most 128, that share a KV head. It goes through
// the chunk by tiles: K and V of a tile are dequantized into shared memory, each warp multiplies them with its 16 rows
// on tensor cores, and keeps a running softmax (Dao, 2023, "FlashAttention-2"). It leaves what quantized.cu says. Words
// of the next tile are on their way meanwhile.

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

template <
    typename T, int K_BITS, int V_BITS, int GROUP, int K_WIDTH, int K_BLOCK, int V_WIDTH, int TILE, typename Keys,
    typename Values>
__device__ void attend_rows(
    const T* queries, int64_t head_step, int64_t query_step, int64_t width_step,  // the first head's
    int n, float scale,                                                           // n queries of each head
    const Keys& keys, const Values& values, Visible visible,
    int first_row, int end_row,      // rows count through heads and queries; they are rotated if K_BLOCK
    int start, int end, int tokens,  // of this chunk, and of all
    float* stats, float* out,        // of the first head's first query
    int64_t head_chunks, int64_t query_chunks) {  // from one head, and from one query, to the next
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
    bool all = visible.at == nullptr && !visible.window &&
               at + TILE <= (visible.causal ? min(end, tokens - n + 1) : end);
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
    int row = mine + g + 8 * half;
    if (row >= end_row) continue;
    int64_t to_row = row / n * head_chunks + row % n * query_chunks;
    if (t == 0) {
      stats[to_row * 2] = top[half];
      stats[to_row * 2 + 1] = sum[half];
    }
#pragma unroll
    for (int j = 0; j < V_WIDTH / 8; ++j) {
      float* to = out + to_row * V_WIDTH + 8 * j + 2 * t;
      to[0] = acc[j][2 * half];
      to[1] = acc[j][2 * half + 1];
    }
  }
}
