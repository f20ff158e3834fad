// A few queries of one sequence over affinely quantized latents, which are keys and values, and rotary keys; comes
// behind tiles.cu.
//
// A block takes one chunk of the tokens for 16 rows of queries. It goes through the chunk by tiles, dequantized into
// shared memory. For the scores of a tile, warps divide the tokens and the width between them; each then has the whole
// running softmax, and adds to the outputs of its own columns. It leaves what quantized.cu says.

constexpr int ROWS = 16, WARPS = THREADS / 32;

// Rows of queries, of which each warp takes some, rotated if BLOCK, into shared memory.
template <typename T, int WIDTH, int BLOCK>
__device__ __forceinline__ void stage_queries(
    const T* queries, int64_t head_step, int64_t query_step, int64_t width_step, int n, int first_row, int end_row,
    T* out, int out_step) {
  int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < ROWS; row += WARPS) {
    int from = min(first_row + row, end_row - 1);
    const T* query = queries + from / n * head_step + from % n * query_step;
    float x[WIDTH / 32];
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) {
      x[j] = query[(32 * j + lane) * width_step];
      if constexpr (BLOCK != 0) x[j] = with_sign(x[j], 32 * j + lane);
    }
    if constexpr (BLOCK != 0) transform_row<WIDTH, BLOCK>(x);
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) {
      out[row * out_step + 32 * j + lane] = static_cast<T>(BLOCK == 0 ? x[j] : x[j] * inverse_root(BLOCK));
    }
  }
}

template <
    typename T, int K_BITS, int V_BITS, int GROUP, int K_WIDTH, int K_BLOCK, int V_WIDTH, int V_BLOCK, int TILE,
    typename Latents, typename Keys>
__device__ void attend_latents(
    const T* queries, int64_t head_step, int64_t query_step, int64_t width_step,  // the first head's
    const T* rotary_queries, int64_t rotary_head_step, int64_t rotary_query_step, int64_t rotary_width_step,
    int n, float scale,  // n queries of each head
    const Latents& latents, const Keys& rotary, Visible visible,
    int first_row, int end_row,                // rows count through heads and queries
    int start, int end, int tokens,            // of this chunk, and of all
    float* stats, float* out, int64_t step) {  // of the first head's first query; `step` chunks from row to row
  using Latent = Fetched<T, K_BITS, GROUP, K_WIDTH, TILE>;
  using Rotary = Fetched<T, V_BITS, GROUP, V_WIDTH, TILE>;
  constexpr int SUBTILES = TILE / 8, PARTS = WARPS / SUBTILES, STEPS = (K_WIDTH + V_WIDTH) / 16 / PARTS;
  constexpr int COLUMNS = K_WIDTH / 16, SHARE = (COLUMNS + WARPS - 1) / WARPS, SCORES = TILE + 4;
  static_assert(SUBTILES * PARTS == WARPS && STEPS * PARTS * 16 == K_WIDTH + V_WIDTH, "warps do not divide the tile");
  static_assert(TILE >= ROWS, "queries are staged where tiles lie");
  alignas(16) __shared__ T tile[TILE * Latent::STEP];
  alignas(16) __shared__ T rotary_tile[TILE * Rotary::STEP];
  __shared__ float scores[PARTS][ROWS][SCORES];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int subtile = warp % SUBTILES, part = warp / SUBTILES;

  // Columns 16 k and so on of what lies in shared memory by rows, latents first.
  auto columns = [&](int row, int k) {
    return k < COLUMNS ? tile + row * Latent::STEP + 16 * k : rotary_tile + row * Rotary::STEP + 16 * (k - COLUMNS);
  };

  stage_queries<T, K_WIDTH, K_BLOCK>(
      queries, head_step, query_step, width_step, n, first_row, end_row, tile, Latent::STEP);
  stage_queries<T, V_WIDTH, V_BLOCK>(
      rotary_queries, rotary_head_step, rotary_query_step, rotary_width_step, n, first_row, end_row, rotary_tile,
      Rotary::STEP);
  __syncthreads();
  uint32_t a[STEPS][4];
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T* from = columns(g + i % 2 * 8, part * STEPS + k) + i / 2 * 8 + 2 * t;
      a[k][i] = *reinterpret_cast<const uint32_t*>(from);
    }
  }

  int query[2], own[2];  // of rows g and g + 8: the query, and the token that it stands at
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    query[half] = min(first_row + g + 8 * half, end_row - 1) % n;
    own[half] = tokens - n + query[half];
  }
  float top[2] = {LEAST, LEAST}, sum[2] = {0, 0}, acc[2 * SHARE][4] = {};
  Latent latent;
  Rotary key;
  latent.fetch(latents, start, end - 1);
  key.fetch(rotary, start, end - 1);
  for (int at = start; at < end; at += TILE) {
    __syncthreads();  // All have read the tile before.
    latent.put(tile);
    key.put(rotary_tile);
    __syncthreads();
    if (at + TILE < end) {
      latent.fetch(latents, at + TILE, end - 1);
      key.fetch(rotary, at + TILE, end - 1);
    }

    float score[4] = {};
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      const T* b = columns(8 * subtile + g, part * STEPS + k) + 2 * t;
      Product<T>::add(score, a[k], *reinterpret_cast<const uint32_t*>(b), *reinterpret_cast<const uint32_t*>(b + 8));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[part][g + i / 2 * 8][8 * subtile + 2 * t + i % 2] = score[i];
    __syncthreads();

    // As a lane has them of a product's A: of each 16 tokens 2t, 2t + 1, 2t + 8 and 2t + 9, of rows g and g + 8.
    bool all = visible.at == nullptr && at + TILE <= (visible.causal ? min(end, tokens - n + 1) : end);
    float weight[2][TILE / 8][2], most[2] = {top[0], top[1]};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int token = 8 * j + 2 * t + i;
          float x = 0;
#pragma unroll
          for (int p = 0; p < PARTS; ++p) x += scores[p][g + 8 * half][token];
          x = all || visible(query[half], own[half], at + token, end) ? x * scale : 2 * LEAST;
          weight[half][j][i] = x;
          most[half] = fmaxf(most[half], x);
        }
      }
      most[half] = fmaxf(most[half], __shfl_xor_sync(ALL, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(ALL, most[half], 2));
      float factor = exp2f(top[half] - most[half]);
      top[half] = most[half];
      sum[half] *= factor;
#pragma unroll
      for (int j = 0; j < 2 * SHARE; ++j) {
        acc[j][2 * half] *= factor;
        acc[j][2 * half + 1] *= factor;
      }
#pragma unroll
      for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          weight[half][j][i] = exp2f(weight[half][j][i] - top[half]);
          sum[half] += weight[half][j][i];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < TILE / 16; ++k) {
      uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = weight[i % 2][2 * k + i / 2];
        weights[i] = pair<T>(from[0], from[1]);
      }
#pragma unroll
      for (int j = 0; j < SHARE; ++j) {
        int column = warp + j * WARPS;
        if (column >= COLUMNS) break;
        uint32_t b[4];
        load_transposed(b, tile + (16 * k + lane % 16) * Latent::STEP + 16 * column + lane / 16 * 8);
        Product<T>::add(acc[2 * j], weights, b[0], b[1]);
        Product<T>::add(acc[2 * j + 1], weights, b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(ALL, sum[half], 1);
    sum[half] += __shfl_xor_sync(ALL, sum[half], 2);
    int64_t row = first_row + g + 8 * half;
    if (row >= end_row) continue;
    if (warp == 0 && t == 0) {
      stats[row * step * 2] = top[half];
      stats[row * step * 2 + 1] = sum[half];
    }
#pragma unroll
    for (int j = 0; j < 2 * SHARE; ++j) {
      int column = warp + j / 2 * WARPS;
      if (column >= COLUMNS) break;
      float* to = out + row * step * K_WIDTH + 16 * column + j % 2 * 8 + 2 * t;
      to[0] = acc[j][2 * half];
      to[1] = acc[j][2 * half + 1];
    }
  }
}
