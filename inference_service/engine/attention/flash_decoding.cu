// One query per row over affinely quantized K and V; flash_decoding.py compiles it behind quantized.cu.
//
// A block takes one chunk of one row's tokens for the query heads that share a KV head, and leaves what `merge_chunks`
// wants. K and V are read once, in their packed form, and never dequantized in memory. A token's row of words is split
// over LANES neighbouring lanes of a warp, so a warp reads 32 / LANES tokens at once.

// A lane's share of a token's row, as scale * x + bias with x small integers.
template <typename T, int BITS, int GROUP, int WIDTH, int LANES>
struct Share {
  static constexpr int PER = 32 / BITS;
  static constexpr int WORDS = WIDTH / PER / LANES;
  static constexpr int SIZE = WORDS * PER;
  static constexpr bool ONE_GROUP = (GROUP / PER) % WORDS == 0;
  static constexpr int GROUPS = ONE_GROUP ? 1 : WORDS;  // else each word brings its own scale and bias
  static_assert(WORDS * PER * LANES == WIDTH && GROUP % PER == 0, "the row does not split so");

  Words<WORDS> words;
  float scale[GROUPS], bias[GROUPS];

  __device__ __forceinline__ Share(const Side<T>& side, int token, int lane) {
    words = *reinterpret_cast<const Words<WORDS>*>(side.words + token * side.words_step + lane * WORDS);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      int group = (lane * WORDS + g) * PER / GROUP;
      scale[g] = static_cast<float>(side.scales[token * side.scales_step + group]);
      bias[g] = static_cast<float>(side.biases[token * side.biases_step + group]);
    }
  }
};

template <typename T, int BITS, int GROUP, int HEADS, int K_WIDTH, int K_LANES, int V_WIDTH, int V_LANES, int THREADS, int CHUNK>
__device__ void attend_chunk(
    const T* queries, int64_t head_step, int64_t width_step, float scale,  // HEADS rows of K_WIDTH
    Side<T> keys, Side<T> values,
    const bool* visible, int64_t visible_step,  // null: all tokens are
    int tokens,                                 // of this chunk, at most CHUNK
    float* stats, int64_t stats_step,           // HEADS pairs: largest score, sum of exponentials
    float* out, int64_t out_step) {             // HEADS rows of V_WIDTH
  using Key = Share<T, BITS, GROUP, K_WIDTH, K_LANES>;
  using Value = Share<T, BITS, GROUP, V_WIDTH, V_LANES>;
  constexpr int WARPS = THREADS / 32;
  constexpr unsigned ALL = 0xFFFFFFFFu;
  __shared__ float scaled_queries[HEADS][K_WIDTH];
  __shared__ float weights[CHUNK][HEADS];
  __shared__ float outputs[WARPS][HEADS][V_WIDTH];
  int thread = threadIdx.x, warp = thread / 32;

  for (int i = thread; i < HEADS * K_WIDTH; i += THREADS) {
    float x = queries[i / K_WIDTH * head_step + i % K_WIDTH * width_step];
    scaled_queries[i / K_WIDTH][i % K_WIDTH] = x * (scale * LOG2E);
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
    // All lanes go round equally often, because they exchange values: those that are past the end repeat the last.
#pragma unroll 4
    for (int start = 0; start < tokens; start += THREADS / K_LANES) {
      int token = start + first;
      Key key(keys, min(token, tokens - 1), lane);
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
        for (int w = 0; w < Key::WORDS / Key::GROUPS; ++w) {
          float x[Key::PER];
          int word = g * (Key::WORDS / Key::GROUPS) + w;
          unpack<BITS>(key.words.at[word], x);
#pragma unroll
          for (int i = 0; i < Key::PER; ++i) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) dot[h] += query[h][word * Key::PER + i] * x[i];
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
#pragma unroll 4
    for (int token = first; token < tokens; token += THREADS / V_LANES) {
      Value value(values, token, lane);
      float weight[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        weight[h] = weights[token][h];
#pragma unroll
        for (int g = 0; g < Value::GROUPS; ++g) biases[h][g] += weight[h] * value.bias[g];
      }
#pragma unroll
      for (int w = 0; w < Value::WORDS; ++w) {
        float x[Value::PER];
        unpack<BITS>(value.words.at[w], x);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          float scaled = weight[h] * value.scale[w * Value::GROUPS / Value::WORDS];
#pragma unroll
          for (int i = 0; i < Value::PER; ++i) sum[h][w * Value::PER + i] += scaled * x[i];
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
      for (int i = 0; i < Value::SIZE; ++i) {
        float x = sum[h][i] + biases[h][i * Value::GROUPS / Value::SIZE];
#pragma unroll
        for (int apart = V_LANES; apart < 32; apart *= 2) x += __shfl_xor_sync(ALL, x, apart);
        if (thread % 32 < V_LANES) outputs[warp][h][lane * Value::SIZE + i] = x;
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < HEADS * V_WIDTH; i += THREADS) {
    float x = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) x += outputs[w][i / V_WIDTH][i % V_WIDTH];
    out[i / V_WIDTH * out_step + i % V_WIDTH] = x;
  }
}
