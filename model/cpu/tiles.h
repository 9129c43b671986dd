// What matrix products are made of: tiles of a few rows and two vectors of columns, which stay in registers.
#pragma once
#include "kernels.h"

namespace mindgpt {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), aligned(sizeof(float))));
constexpr int kRows = 6, kColumns = 2 * kLanes;  // of a tile: as many as the registers of a core hold

inline int64_t rounded(int64_t n) { return (n + kColumns - 1) / kColumns * kColumns; }

// A matrix [depth, columns] in strips of kColumns columns, each contiguous: element (k, j) at [j / kColumns][k][j % kColumns], zero
// beyond `columns`; from[k * row + j].
inline void pack(float* strips, const float* from, int64_t row, int64_t depth, int64_t columns) {
  for (int64_t j = 0; j < columns; j += kColumns) {
    const int64_t width = std::min<int64_t>(kColumns, columns - j);
    for (int64_t k = 0; k < depth; ++k, strips += kColumns) {
      if (width == kColumns) {
        std::copy_n(from + k * row + j, kColumns, strips);
      } else {
        std::fill(std::copy_n(from + k * row + j, width, strips), strips + kColumns, 0.0f);
      }
    }
  }
}

// to[j * to_row + i] = from[i * row + j] of four by four
inline void transpose_four(float* to, int64_t to_row, const float* from, int64_t row) {
  typedef float Four __attribute__((vector_size(16), aligned(sizeof(float))));
  typedef int32_t Places __attribute__((vector_size(16)));
  Four in[4];
  for (int i = 0; i < 4; ++i) in[i] = *reinterpret_cast<const Four*>(from + i * row);
  const Places low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, left = {0, 1, 4, 5}, right = {2, 3, 6, 7};
  const Four a = __builtin_shuffle(in[0], in[1], low), b = __builtin_shuffle(in[2], in[3], low);
  const Four c = __builtin_shuffle(in[0], in[1], high), d = __builtin_shuffle(in[2], in[3], high);
  const Four out[4] = {__builtin_shuffle(a, b, left), __builtin_shuffle(a, b, right), __builtin_shuffle(c, d, left),
                       __builtin_shuffle(c, d, right)};
  for (int j = 0; j < 4; ++j) *reinterpret_cast<Four*>(to + j * to_row) = out[j];
}

// The same of from[j * row + k].
inline void pack_transposed(float* strips, const float* from, int64_t row, int64_t depth, int64_t columns) {
  for (int64_t j = 0; j < columns; j += kColumns, strips += depth * kColumns) {
    int64_t k = 0;
    if (j + kColumns <= columns)
      for (; k + 4 <= depth; k += 4)
        for (int64_t i = 0; i < kColumns; i += 4) transpose_four(strips + k * kColumns + i, kColumns, from + (j + i) * row + k, row);
    for (; k < depth; ++k)
      for (int64_t i = 0; i < kColumns; ++i) strips[k * kColumns + i] = j + i < columns ? from[(j + i) * row + k] : 0.0f;
  }
}

// c (+)= a b for M rows and one strip; a(i, k) = a[i * a_row + k * a_k]
template <int M>
inline void tile_of(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_k, const float* strip, int64_t depth, bool add) {
  Vec sums[M][2] = {};
  if (add)
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < 2; ++j) sums[i][j] = *reinterpret_cast<const Vec*>(c + i * ldc + j * kLanes);
  for (int64_t k = 0; k < depth; ++k) {
    const Vec b0 = *reinterpret_cast<const Vec*>(strip + k * kColumns), b1 = *reinterpret_cast<const Vec*>(strip + k * kColumns + kLanes);
    for (int i = 0; i < M; ++i) {
      const float factor = a[i * a_row + k * a_k];
      sums[i][0] += factor * b0;
      sums[i][1] += factor * b1;
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < 2; ++j) *reinterpret_cast<Vec*>(c + i * ldc + j * kLanes) = sums[i][j];
}

// The same for up to kRows rows.
inline void tile(int64_t rows, float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_k, const float* strip, int64_t depth, bool add) {
  switch (rows) {
    case 6: return tile_of<6>(c, ldc, a, a_row, a_k, strip, depth, add);
    case 5: return tile_of<5>(c, ldc, a, a_row, a_k, strip, depth, add);
    case 4: return tile_of<4>(c, ldc, a, a_row, a_k, strip, depth, add);
    case 3: return tile_of<3>(c, ldc, a, a_row, a_k, strip, depth, add);
    case 2: return tile_of<2>(c, ldc, a, a_row, a_k, strip, depth, add);
    default: return tile_of<1>(c, ldc, a, a_row, a_k, strip, depth, add);
  }
}

// Memory of a thread that lasts, in pieces.
class Scratch {
 public:
  explicit Scratch(int64_t floats) {
    static thread_local std::vector<float> memory;
    if (static_cast<int64_t>(memory.size()) < floats) memory.resize(floats);
    next_ = memory.data();
  }
  float* take(int64_t floats) { return next_ += floats, next_ - floats; }

 private:
  float* next_;
};

}  // namespace mindgpt
