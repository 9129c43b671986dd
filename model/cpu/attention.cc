// Causal attention: no [seq, seq] in memory, and nothing is computed of what the mask would hide. Each sample's head is worked through
// in blocks of queries; the backward pass computes the weights of the values again from what the forward pass kept of each row
// (FlashAttention-2, arXiv:2307.08691, where rows are short enough to be whole).
#include "tiles.h"

namespace {

constexpr int64_t kBlock = 8 * kRows;      // queries at a time
using Span = std::pair<int64_t, int64_t>;  // [first, last)

// [rows, columns] of rows that are as long as whole strips.
void unpad(float* to, int64_t row, const float* from, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * rounded(columns), columns, to + r * row);
}

// c[rows, columns] (+)= a b, with b in strips that are `strip_depth` deep; of the rows from i on, b's rows within depth(i) count.
template <typename Depth>
void product(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_k, const float* strips, int64_t strip_depth, int64_t rows,
             int64_t columns, Depth depth, bool add) {
  for (int64_t j = 0; j < columns; j += kColumns)
    for (int64_t i = 0; i < rows; i += kRows) {
      const auto [first, last] = depth(i);
      const float *from = a + i * a_row + first * a_k, *strip = strips + j * strip_depth + first * kColumns;
      float* to = c + i * ldc + j;
      tile(std::min<int64_t>(kRows, rows - i), to, ldc, from, a_row, a_k, strip, last - first, add);
    }
}

// Of q [batch, seq, heads, head_size] and k; a group of heads has its keys and values in common.
struct Sizes {
  int64_t batch, seq, heads, head_size, kv_heads, group, row, kv_row;  // row: from a token to the next
  float scale;

  Sizes(const int64_t* q, const int64_t* k)
      : batch(q[0]), seq(q[1]), heads(q[2]), head_size(q[3]), kv_heads(k[2]), group(heads / kv_heads), row(heads * head_size),
        kv_row(kv_heads * head_size), scale(1.0f / std::sqrt(static_cast<float>(head_size))) {}
  // Where a head's first token is.
  int64_t at(int64_t sample, int64_t head) const { return sample * seq * row + head * head_size; }
  int64_t kv_at(int64_t sample, int64_t head) const { return sample * seq * kv_row + head * head_size; }
};

}  // namespace

// q [batch, seq, heads, d], k, v [batch, seq, kv_heads, d]
// -> y like q, and for each row the largest score and 1 / the sum of the exponentials [batch, heads, seq, 2]
OPERATOR(causal_attention, 0) {
  const Sizes s(shapes[0], shapes[1]);
  const float *q = at<const float>(params, 0), *k = at<const float>(params, 1), *v = at<const float>(params, 2);
  float *y = at<float>(params, 3), *kept = at<float>(params, 4);
  const int64_t d = s.head_size, t = s.seq, ld = rounded(t) + kColumns, d_ld = rounded(d);
  const float scale = s.scale;
  parallel(s.batch * s.kv_heads, t * t, [=](int64_t i) {
    const int64_t sample = i / s.kv_heads, kv_head = i % s.kv_heads, kv = s.kv_at(sample, kv_head);
    Scratch scratch(d * rounded(t) + t * d_ld + kBlock * (ld + d_ld));
    float *keys = scratch.take(d * rounded(t)), *values = scratch.take(t * d_ld);
    float *scores = scratch.take(kBlock * ld), *sums = scratch.take(kBlock * d_ld);
    pack_transposed(keys, k + kv, s.kv_row, d, t);
    pack(values, v + kv, s.kv_row, t, d);
    for (int64_t head = kv_head * s.group; head < (kv_head + 1) * s.group; ++head)
      for (int64_t start = 0; start < t; start += kBlock) {
        const int64_t rows = std::min(kBlock, t - start), seen = start + rows, first = s.at(sample, head) + start * s.row;
        float* keep = kept + ((sample * s.heads + head) * t + start) * 2;
        product(scores, ld, q + first, s.row, 1, keys, d, rows, seen, [=](int64_t) { return Span(0, d); }, false);
        for (int64_t r = 0; r < rows; ++r) {
          float *a = scores + r * ld, sum = 0;
          const int64_t n = start + r + 1;
          const float highest = largest(a, n);
          for (int64_t j = 0; j < n; ++j) sum += a[j] = fast_exp((a[j] - highest) * scale);
          const float share = 1.0f / sum;
          for (int64_t j = 0; j < n; ++j) a[j] *= share;
          std::fill(a + n, a + seen, 0.0f);
          keep[2 * r] = highest, keep[2 * r + 1] = share;
        }
        product(sums, d_ld, scores, ld, 1, values, t, rows, d,
                [=](int64_t r) { return Span(0, std::min(start + r + kRows, seen)); }, false);
        unpad(y + first, s.row, sums, rows, d);
      }
  });
}

// q, k, v, what was kept, dy like q -> dq, dk, dv
OPERATOR(causal_attention_grad, 0) {
  const Sizes s(shapes[0], shapes[1]);
  const float *q = at<const float>(params, 0), *k = at<const float>(params, 1), *v = at<const float>(params, 2);
  const float *kept = at<const float>(params, 3), *dy = at<const float>(params, 4);
  float *dq = at<float>(params, 5), *dk = at<float>(params, 6), *dv = at<float>(params, 7);
  const int64_t d = s.head_size, t = s.seq, ld = rounded(t) + kColumns, d_ld = rounded(d);
  const float scale = s.scale;
  parallel(s.batch * s.kv_heads, t * t, [=](int64_t i) {
    const int64_t sample = i / s.kv_heads, kv_head = i % s.kv_heads, kv = s.kv_at(sample, kv_head);
    Scratch scratch(2 * d * rounded(t) + 3 * t * d_ld + kBlock * (2 * ld + 3 * d_ld));
    float *keys = scratch.take(d * rounded(t)), *values = scratch.take(d * rounded(t)), *key_rows = scratch.take(t * d_ld);
    float *sum_k = scratch.take(t * d_ld), *sum_v = scratch.take(t * d_ld);
    float *p = scratch.take(kBlock * ld), *ds = scratch.take(kBlock * ld);
    float *queries = scratch.take(kBlock * d_ld), *gradients = scratch.take(kBlock * d_ld), *sums = scratch.take(kBlock * d_ld);
    pack_transposed(keys, k + kv, s.kv_row, d, t);
    pack_transposed(values, v + kv, s.kv_row, d, t);
    pack(key_rows, k + kv, s.kv_row, t, d);
    std::fill_n(sum_k, 2 * t * d_ld, 0.0f);
    for (int64_t head = kv_head * s.group; head < (kv_head + 1) * s.group; ++head)
      for (int64_t start = 0; start < t; start += kBlock) {
        const int64_t rows = std::min(kBlock, t - start), seen = start + rows, first = s.at(sample, head) + start * s.row;
        const float* keep = kept + ((sample * s.heads + head) * t + start) * 2;
        pack(queries, q + first, s.row, rows, d);
        pack(gradients, dy + first, s.row, rows, d);
        const auto whole = [=](int64_t) { return Span(0, d); };
        product(p, ld, q + first, s.row, 1, keys, d, rows, seen, whole, false);
        product(ds, ld, dy + first, s.row, 1, values, d, rows, seen, whole, false);
        for (int64_t r = 0; r < rows; ++r) {
          const float highest = keep[2 * r], share = keep[2 * r + 1];
          float *a = p + r * ld, *g = ds + r * ld, sum = 0;
          const int64_t n = start + r + 1;
          for (int64_t j = 0; j < n; ++j) {
            a[j] = fast_exp((a[j] - highest) * scale) * share;
            sum += a[j] * g[j];
          }
          for (int64_t j = 0; j < n; ++j) g[j] = a[j] * (g[j] - sum) * scale;
          std::fill(a + n, a + seen, 0.0f);
          std::fill(g + n, g + seen, 0.0f);
        }
        const auto later = [=](int64_t j) { return Span(std::clamp<int64_t>(j - start, 0, rows), rows); };  // who sees key j
        product(sum_v, d_ld, p, 1, ld, gradients, rows, seen, d, later, true);
        product(sum_k, d_ld, ds, 1, ld, queries, rows, seen, d, later, true);
        product(sums, d_ld, ds, ld, 1, key_rows, t, rows, d,
                [=](int64_t r) { return Span(0, std::min(start + r + kRows, seen)); }, false);
        unpad(dq + first, s.row, sums, rows, d);
      }
    unpad(dk + kv, s.kv_row, sum_k, t, d);
    unpad(dv + kv, s.kv_row, sum_v, t, d);
  });
}
