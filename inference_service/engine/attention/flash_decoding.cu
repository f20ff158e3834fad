// One query per row over affinely quantized K and V; comes after quantized.cu.
//
// A block takes one chunk of one row's tokens for the query heads that share a KV head, and leaves what quantized.cu
// says. K and V are read once, in their packed form, and never dequantized in memory. A token's row is split over LANES
// neighbouring lanes of a warp, so a warp reads 32 / LANES tokens at once.

// A lane's share of a token's row, as scale * x + bias with x small integers.
template <typename T, int BITS, int GROUP, int WIDTH, int LANES>
struct Share {
  static constexpr int PER = UNIT<BITS>;
  static constexpr int UNITS = WIDTH / PER / LANES;
  static constexpr int SIZE = UNITS * PER;
  static constexpr int GROUPS = GROUP % SIZE == 0 ? 1 : UNITS;  // else each unit brings its own scale and bias
  static_assert(SIZE * LANES == WIDTH && GROUP % PER == 0, "the row does not split so");

  Packed<BITS, UNITS> packed;
  T kept_scale[GROUPS], kept_bias[GROUPS];
  float scale[GROUPS], bias[GROUPS];

  Share() = default;

  __device__ __forceinline__ Share(const Side<T>& side, int token, int lane) {
    fetch(side, token, lane);
    prepare(lane);
  }

  __device__ __forceinline__ void fetch(const Side<T>& side, int token, int lane) {
    packed.load(side.words + token * side.words_step, lane);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      int group = (lane * UNITS + g) * PER / GROUP;
      kept_scale[g] = side.scales[token * side.scales_step + group];
      kept_bias[g] = side.biases[token * side.biases_step + group];
    }
  }

  __device__ __forceinline__ void prepare(int lane) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      scale[g] = static_cast<float>(kept_scale[g]);
      bias[g] = static_cast<float>(kept_bias[g]);
    }
    packed.align(lane);
  }
};

// Calls `use` with a lane's shares of tokens `first`, `first` + STEP, ... as long as all lanes have four left, and
// fetches four before it uses the first. Returns how far they came.
template <typename Share, int STEP, typename T, typename Use>
__device__ __forceinline__ int by_fours(const Side<T>& side, int tokens, int first, int lane, const Use& use) {
  int start = 0;
#pragma unroll 1
  for (; start + 4 * STEP <= tokens; start += 4 * STEP) {
    Share share[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) share[i].fetch(side, start + i * STEP + first, lane);
    __syncwarp();  // No use comes before the last fetch.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      share[i].prepare(lane);
      use(share[i], start + i * STEP + first);
    }
  }
  return start;
}

template <
    typename T, int K_BITS, int V_BITS, int GROUP, int HEADS, int K_WIDTH, int K_BLOCK, int K_LANES, int V_WIDTH,
    int V_LANES, int THREADS, int CHUNK>
__device__ void attend_chunk(
    const T* queries, int64_t head_step, int64_t width_step, float scale,  // HEADS rows of K_WIDTH; rotated if K_BLOCK
    Side<T> keys, Side<T> values,
    const bool* visible, int64_t visible_step,  // null: all tokens are
    int tokens,                                 // of this chunk, at most CHUNK
    float* stats, int64_t stats_step,           // HEADS pairs: largest score, sum of exponentials
    float* out, int64_t out_step) {             // HEADS rows of V_WIDTH
  using Key = Share<T, K_BITS, GROUP, K_WIDTH, K_LANES>;
  using Value = Share<T, V_BITS, GROUP, V_WIDTH, V_LANES>;
  constexpr int WARPS = THREADS / 32, K_STEP = THREADS / K_LANES, V_STEP = THREADS / V_LANES;
  // Where V fills words, the compiler fetches ahead by itself. Else it does not, and 3 bits took half as long again
  // (H200).
  constexpr bool BY_FOURS = 32 % V_BITS != 0;
  __shared__ float scaled_queries[HEADS][K_WIDTH];
  __shared__ float weights[CHUNK][HEADS];
  __shared__ float outputs[WARPS * HEADS * V_WIDTH];
  int thread = threadIdx.x, warp = thread / 32;

  if constexpr (K_BLOCK == 0) {
    for (int i = thread; i < HEADS * K_WIDTH; i += THREADS) {
      float x = queries[i / K_WIDTH * head_step + i % K_WIDTH * width_step];
      scaled_queries[i / K_WIDTH][i % K_WIDTH] = x * (scale * LOG2E);
    }
  } else {
    for (int h = warp; h < HEADS; h += WARPS) {
      float query[K_WIDTH / 32];
#pragma unroll
      for (int j = 0; j < K_WIDTH / 32; ++j) {
        int i = 32 * j + thread % 32;
        query[j] = with_sign(queries[h * head_step + i * width_step], i);
      }
      transform_row<K_WIDTH, K_BLOCK>(query);
#pragma unroll
      for (int j = 0; j < K_WIDTH / 32; ++j) {
        scaled_queries[h][32 * j + thread % 32] = query[j] * (scale * LOG2E * inverse_root(K_BLOCK));
      }
    }
  }
  __syncthreads();

  {  // Scores.
    int lane = thread % K_LANES, first = thread / K_LANES;
    float query[HEADS][Key::SIZE], sums[HEADS][Key::GROUPS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
      for (int i = 0; i < Key::SIZE; ++i) query[h][i] = scaled_queries[h][lane * Key::SIZE + i];
#pragma unroll
      for (int g = 0; g < Key::GROUPS; ++g) {
        sums[h][g] = 0;
#pragma unroll
        for (int i = 0; i < Key::SIZE / Key::GROUPS; ++i) sums[h][g] += query[h][g * (Key::SIZE / Key::GROUPS) + i];
      }
    }
    auto score_token = [&](const Key& key, int token) {
      float score[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        score[h] = 0;
#pragma unroll
        for (int g = 0; g < Key::GROUPS; ++g) score[h] += key.bias[g] * sums[h][g];
      }
#pragma unroll
      for (int g = 0; g < Key::GROUPS; ++g) {
        float dot[HEADS] = {};
#pragma unroll
        for (int u = 0; u < Key::UNITS / Key::GROUPS; ++u) {
          float x[Key::PER];
          int unit = g * (Key::UNITS / Key::GROUPS) + u;
          key.packed.unpack_unit(unit, x);
#pragma unroll
          for (int i = 0; i < Key::PER; ++i) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) dot[h] += query[h][unit * Key::PER + i] * x[i];
          }
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) score[h] += key.scale[g] * dot[h];
      }
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int apart = K_LANES / 2; apart > 0; apart /= 2) score[h] += __shfl_xor_sync(ALL, score[h], apart);
      }
      if (lane == 0 && token < tokens) {
        bool seen = visible == nullptr || visible[token * visible_step];
#pragma unroll
        for (int h = 0; h < HEADS; ++h) weights[token][h] = seen ? score[h] : 2 * LEAST;
      }
    };
    int start = BY_FOURS ? by_fours<Key, K_STEP>(keys, tokens, first, lane, score_token) : 0;
    // All lanes go round equally often, because they exchange values: those that are past the end repeat the last.
#pragma unroll(BY_FOURS ? 1 : 4)
    for (; start < tokens; start += K_STEP) {
      score_token(Key(keys, min(start + first, tokens - 1), lane), start + first);
    }
  }
  __syncthreads();

  // Softmax, without its division: a warp for each head.
  for (int h = warp; h < HEADS; h += WARPS) {
    float top = LEAST, sum = 0;
    for (int token = thread % 32; token < tokens; token += 32) top = fmaxf(top, weights[token][h]);
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, apart));
    for (int token = thread % 32; token < tokens; token += 32) {
      float weight = exp2f(weights[token][h] - top);
      weights[token][h] = weight;
      sum += weight;
    }
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(ALL, sum, apart);
    if (thread % 32 == 0) {
      stats[h * stats_step] = top;
      stats[h * stats_step + 1] = sum;
    }
  }
  __syncthreads();

  {  // Weighted sum of the values: each lane over its tokens, then over the lanes of a warp, then over the warps.
    int lane = thread % V_LANES, first = thread / V_LANES;
    float sum[HEADS][Value::SIZE] = {}, biases[HEADS][Value::GROUPS] = {};
    auto add_token = [&](const Value& value, int token) {
      float weight[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        weight[h] = weights[token][h];
#pragma unroll
        for (int g = 0; g < Value::GROUPS; ++g) biases[h][g] += weight[h] * value.bias[g];
      }
#pragma unroll
      for (int u = 0; u < Value::UNITS; ++u) {
        float x[Value::PER];
        value.packed.unpack_unit(u, x);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          float scaled = weight[h] * value.scale[u * Value::GROUPS / Value::UNITS];
#pragma unroll
          for (int i = 0; i < Value::PER; ++i) sum[h][u * Value::PER + i] += scaled * x[i];
        }
      }
    };
    int start = BY_FOURS ? by_fours<Value, V_STEP>(values, tokens, first, lane, add_token) : 0;
#pragma unroll(BY_FOURS ? 1 : 4)
    for (int token = start + first; token < tokens; token += V_STEP) add_token(Value(values, token, lane), token);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
      for (int i = 0; i < Value::SIZE; ++i) {
        float x = sum[h][i] + biases[h][i * Value::GROUPS / Value::SIZE];
#pragma unroll
        for (int apart = V_LANES; apart < 32; apart *= 2) x += __shfl_xor_sync(ALL, x, apart);
        if (thread % 32 < V_LANES) outputs[(warp * HEADS + h) * V_WIDTH + lane * Value::SIZE + i] = x;
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < HEADS * V_WIDTH; i += THREADS) {
    float x = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) x += outputs[w * HEADS * V_WIDTH + i];
    out[i / V_WIDTH * out_step + i % V_WIDTH] = x;
  }
}
