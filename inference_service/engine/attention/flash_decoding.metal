// One query per row over affinely quantized K and V; comes behind rotation.metal and quantized.metal.
//
// A threadgroup takes one chunk of one row's tokens for the query heads that share a KV head. K and V are read once, in
// their packed form, and never dequantized in memory. A token's row is split over LANES neighbouring lanes of a
// simdgroup, so that one reads 32 / LANES tokens at once. `memory` has the queries first, then the weights of tokens,
// then each simdgroup's outputs.

// The queries, times the scale and in the packed basis if BLOCK is not 0: HEADS rows of WIDTH in `memory`.
template <int HEADS, int WIDTH, int BLOCK, int SIMDGROUPS, typename T>
inline void load_queries(
    const device T* queries, int64_t head_step, int64_t width_step, float scale, threadgroup float* memory,
    int simdgroup, int lane) {
  const float factor = BLOCK == 0 ? scale * LOG2E : scale * LOG2E * inverse_root(BLOCK);
  for (int h = simdgroup; h < HEADS; h += SIMDGROUPS) {
    float query[WIDTH / 32];
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) {
      const int i = 32 * j + lane;
      const float x = static_cast<float>(queries[h * head_step + i * width_step]);
      query[j] = BLOCK == 0 ? x : with_sign(x, i);
    }
    if (BLOCK != 0) transform_row<WIDTH, BLOCK>(query, lane);
#pragma unroll
    for (int j = 0; j < WIDTH / 32; ++j) memory[h * WIDTH + 32 * j + lane] = query[j] * factor;
  }
}

// Scores of all tokens with the queries that lie in `memory`, into their place: HEADS for each token.
template <typename Key, int HEADS, int LANES, int SIMDGROUPS, typename Keys>
inline void score_tokens(
    thread const Keys& keys, int tokens, threadgroup float* memory, int simdgroup, int lane) {
  const int own = lane % LANES, first = (simdgroup * 32 + lane) / LANES;
  float query[HEADS][Key::SIZE], sums[HEADS][Key::GROUPS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
#pragma unroll
    for (int g = 0; g < Key::GROUPS; ++g) sums[h][g] = 0.0f;
#pragma unroll
    for (int i = 0; i < Key::SIZE; ++i) {
      query[h][i] = memory[(h * LANES + own) * Key::SIZE + i];
      sums[h][i / Key::PART] += query[h][i];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // All lanes go round equally often, because they exchange values: those that are past the end repeat the last.
  for (int start = 0; start < tokens; start += 32 * SIMDGROUPS / LANES) {
    const int token = start + first;
    Key key;
    key.load(keys, min(token, tokens - 1), own);
    float score[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) score[h] = 0.0f;
#pragma unroll
    for (int g = 0; g < Key::GROUPS; ++g) {
      float dot[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; ++h) dot[h] = 0.0f;
#pragma unroll
      for (int i = g * Key::PART; i < (g + 1) * Key::PART; ++i) {
        const float x = key.packed.element(i);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) dot[h] += query[h][i] * x;
      }
#pragma unroll
      for (int h = 0; h < HEADS; ++h) score[h] += key.scale[g] * dot[h] + key.bias[g] * sums[h][g];
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
      for (int apart = LANES / 2; apart > 0; apart /= 2) {
        score[h] += simd_shuffle_xor(score[h], static_cast<ushort>(apart));
      }
    }
    if (own == 0 && token < tokens) {
#pragma unroll
      for (int h = 0; h < HEADS; ++h) memory[token * HEADS + h] = score[h];
    }
  }
}

// Softmax of the scores in `memory`, without its division: a simdgroup for each head.
template <int HEADS, int SIMDGROUPS>
inline void weigh_tokens(
    int tokens, device float* stats, int64_t stats_step, threadgroup float* memory, int simdgroup, int lane) {
  for (int h = simdgroup; h < HEADS; h += SIMDGROUPS) {
    float top = LEAST, sum = 0.0f;
    for (int token = lane; token < tokens; token += 32) top = max(top, memory[token * HEADS + h]);
    top = simd_max(top);
    for (int token = lane; token < tokens; token += 32) {
      const float weight = exp2(memory[token * HEADS + h] - top);
      memory[token * HEADS + h] = weight;
      sum += weight;
    }
    sum = simd_sum(sum);
    if (lane == 0) {
      stats[h * stats_step] = top;
      stats[h * stats_step + 1] = sum;
    }
  }
}

// The sum of the values by the weights in `memory`: each lane over its tokens, then over the lanes of a simdgroup, then
// over the simdgroups.
template <typename Value, int HEADS, int LANES, int SIMDGROUPS, typename Values>
inline void add_values(
    thread const Values& values, int tokens, device float* out, int64_t out_step, threadgroup float* memory,
    int simdgroup, int lane) {
  constexpr int WIDTH = Value::SIZE * LANES;
  const int own = lane % LANES, first = (simdgroup * 32 + lane) / LANES;
  float sum[HEADS][Value::SIZE], biases[HEADS][Value::GROUPS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
#pragma unroll
    for (int i = 0; i < Value::SIZE; ++i) sum[h][i] = 0.0f;
#pragma unroll
    for (int g = 0; g < Value::GROUPS; ++g) biases[h][g] = 0.0f;
  }
  for (int token = first; token < tokens; token += 32 * SIMDGROUPS / LANES) {
    Value value;
    value.load(values, token, own);
    float weight[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) weight[h] = memory[token * HEADS + h];
#pragma unroll
    for (int g = 0; g < Value::GROUPS; ++g) {
      float scaled[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        scaled[h] = weight[h] * value.scale[g];
        biases[h][g] += weight[h] * value.bias[g];
      }
#pragma unroll
      for (int i = g * Value::PART; i < (g + 1) * Value::PART; ++i) {
        const float x = value.packed.element(i);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) sum[h][i] += scaled[h] * x;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
#pragma unroll
    for (int i = 0; i < Value::SIZE; ++i) {
      float x = sum[h][i] + biases[h][i / Value::PART];
#pragma unroll
      for (int apart = LANES; apart < 32; apart *= 2) x += simd_shuffle_xor(x, static_cast<ushort>(apart));
      if (lane < LANES) memory[(simdgroup * HEADS + h) * WIDTH + own * Value::SIZE + i] = x;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = simdgroup * 32 + lane; i < HEADS * WIDTH; i += 32 * SIMDGROUPS) {
    float x = 0.0f;
#pragma unroll
    for (int s = 0; s < SIMDGROUPS; ++s) x += memory[s * HEADS * WIDTH + i];
    out[i / WIDTH * out_step + i % WIDTH] = x;
  }
}
