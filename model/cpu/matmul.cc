// Matrix products. MindSpore's reach a machine's peak in some shapes and a third of it in others (the gradient of a tall weight, a
// product that is narrow and deep), here all shapes run alike: both matrices are copied into the order in which tiles read them.
#include "tiles.h"

namespace {

constexpr int64_t kDepth = 256;          // a strip of that depth stays in the first cache
constexpr int64_t kBlock = 40 * kRows;   // and so many rows of the left matrix in the second
constexpr int64_t kFew = 16;             // rows for which copying the right matrix would cost more than the product

// Element (i, j) at data[i * row + j * column], of which one is 1.
struct Matrix {
  const float* data;
  int64_t row, column;
};

// `depth` of a's columns from k on, for `rows` rows from i on, as tiles read them: [rows / kRows][depth][kRows].
void pack_rows(float* to, const Matrix& a, int64_t i, int64_t rows, int64_t k, int64_t depth) {
  if (a.column == 1) {
    for (int64_t r = 0; r < rows; r += kRows, to += kRows * kDepth) {
      const float* from = a.data + (i + r) * a.row + k;
      const int64_t height = std::min<int64_t>(kRows, rows - r);
      if (height == kRows) {
        for (int64_t d = 0; d < depth; ++d)
          for (int64_t n = 0; n < kRows; ++n) to[d * kRows + n] = from[n * a.row + d];
      } else {
        for (int64_t n = 0; n < height; ++n)
          for (int64_t d = 0; d < depth; ++d) to[d * kRows + n] = from[n * a.row + d];
      }
    }
    return;
  }
  constexpr int64_t kAhead = 8;  // each row is in a page of its own, which no processor fetches by itself
  for (int64_t d = 0; d < depth; ++d) {
    const float* from = a.data + (k + d) * a.column + i;
    if (d + kAhead < depth)
      for (int64_t r = 0; r < rows; r += 16) __builtin_prefetch(from + kAhead * a.column + r);
    for (int64_t r = 0; r < rows; r += kRows) std::copy_n(from + r, std::min<int64_t>(kRows, rows - r), to + r * kDepth + d * kRows);
  }
}

// c [m, n] = a b (+ bias [n]): a [m, k], b [k, n]
void multiply(float* c, const Matrix& a, const Matrix& b, const float* bias, int64_t m, int64_t n, int64_t k) {
  if (k == 0)  // no product: the bias alone
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * n + j] = bias ? bias[j] : 0.0f;
  static thread_local std::vector<float> packed;  // MindSpore may call from several threads
  if (static_cast<int64_t>(packed.size()) < rounded(n) * k) packed.resize(rounded(n) * k);
  float* strips = packed.data();
  const int64_t count = rounded(n) / kColumns;
  parallel(count, k * kColumns, [=](int64_t s) {
    const int64_t j = s * kColumns, width = std::min<int64_t>(kColumns, n - j);
    if (b.column == 1) pack(strips + j * k, b.data + j, b.row, k, width);
    else pack_transposed(strips + j * k, b.data + j * b.column, b.column, k, width);
  });
  Pool::get().run((m + kRows - 1) / kRows, kRows * n * k, [&](int, int64_t first, int64_t last) {
    Scratch scratch(kBlock * kDepth + kRows * kColumns);
    float *rows_of_a = scratch.take(kBlock * kDepth), *edge = scratch.take(kRows * kColumns);
    const int64_t end = std::min(m, last * kRows);
    for (int64_t start = first * kRows; start < end; start += kBlock)
      for (int64_t from = 0; from < k; from += kDepth) {
        const int64_t rows = std::min(kBlock, end - start), depth = std::min(kDepth, k - from);
        pack_rows(rows_of_a, a, start, rows, from, depth);
        for (int64_t j = 0; j < n; j += kColumns)
          for (int64_t r = 0; r < rows; r += kRows) {
            const int64_t height = std::min<int64_t>(kRows, rows - r), width = std::min<int64_t>(kColumns, n - j);
            float* to = c + (start + r) * n + j;
            float* out = width < kColumns ? edge : to;  // a tile is always whole
            const int64_t ldc = width < kColumns ? kColumns : n;
            if (from > 0 && out == edge)
              for (int64_t i = 0; i < height; ++i) std::copy_n(to + i * n, width, edge + i * kColumns);
            if (from == 0 && bias)
              for (int64_t i = 0; i < height; ++i) std::copy_n(bias + j, width, out + i * ldc);
            tile(height, out, ldc, rows_of_a + r * kDepth, 1, kRows, strips + j * k + from * kColumns, depth, from > 0 || bias);
            if (out == edge)
              for (int64_t i = 0; i < height; ++i) std::copy_n(edge + i * kColumns, width, to + i * n);
          }
      }
  });
}

// y [m, n] = x w^T (+ bias): x [m, k], w [n, k]
void multiply_transposed(float* y, const float* x, const float* w, const float* bias, int64_t m, int64_t n, int64_t k) {
  if (m >= kFew) return multiply(y, {x, k, 1}, {w, 1, k}, bias, m, n, k);
  parallel(n, m * k, [=](int64_t j) {
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += x[i * k + l] * w[j * k + l];
      y[i * n + j] = bias ? sum + bias[j] : sum;
    }
  });
}

}  // namespace

// x [m, k], w [n, k], bias [n] -> x w^T + bias [m, n]
OPERATOR(affine, 0) {
  multiply_transposed(at<float>(params, 3), at<float>(params, 0), at<float>(params, 1), at<float>(params, 2), shapes[0][0], shapes[1][0],
                      shapes[0][1]);
}

// x [m, k], w [n, k] -> x w^T [m, n]
OPERATOR(product_t, 0) {
  multiply_transposed(at<float>(params, 2), at<float>(params, 0), at<float>(params, 1), nullptr, shapes[0][0], shapes[1][0], shapes[0][1]);
}

// a [m, k], b [k, n] -> a b [m, n]
OPERATOR(product, 0) {
  const int64_t k = shapes[0][1], n = shapes[1][1];
  multiply(at<float>(params, 2), {at<float>(params, 0), k, 1}, {at<float>(params, 1), n, 1}, nullptr, shapes[0][0], n, k);
}

// a [k, m], b [k, n] -> a^T b [m, n]
OPERATOR(t_product, 0) {
  const int64_t m = shapes[0][1], n = shapes[1][1];
  multiply(at<float>(params, 2), {at<float>(params, 0), 1, m}, {at<float>(params, 1), n, 1}, nullptr, m, n, shapes[0][0]);
}
