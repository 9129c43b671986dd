// Operators of the compiled form that MindSpore's kernels are slow at; compiled.py says what each takes.
#include "kernels.h"

constexpr float kGelu1 = 1.5957691216057308f, kGelu3 = 0.044715f * kGelu1;  // 2 sqrt(2 / pi)

extern "C" void set_threads(int threads) { Pool::get().resize(threads); }

// x -> y, of any shape
OPERATOR(gelu, 0) {
  int64_t size = 1;
  for (int i = 0; i < ndims[0]; ++i) size *= shapes[0][i];
  const float* x = at<const float>(params, 0);
  float* y = at<float>(params, 1);
  Pool::get().run(size, 1, [&](int, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) y[i] = x[i] / (1.0f + fast_exp(-x[i] * (x[i] * x[i] * kGelu3 + kGelu1)));
  });
}

// x, dy -> dx
OPERATOR(gelu_grad, 0) {
  int64_t size = 1;
  for (int i = 0; i < ndims[0]; ++i) size *= shapes[0][i];
  const float *x = at<const float>(params, 0), *dy = at<const float>(params, 1);
  float* dx = at<float>(params, 2);
  Pool::get().run(size, 1, [&](int, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float v = x[i], square = v * v, s = 1.0f / (1.0f + fast_exp(-v * (square * kGelu3 + kGelu1)));
      dx[i] = dy[i] * (s + v * s * (1.0f - s) * (3.0f * kGelu3 * square + kGelu1));
    }
  });
}

// x [rows, n], weight [n], bias [n], eps [1] -> y [rows, n], mean and 1 / standard deviation [rows, 2]
OPERATOR(layer_norm, 0) {
  const int64_t rows = shapes[0][0], n = shapes[0][1];
  const float *x = at<const float>(params, 0), *w = at<const float>(params, 1), *b = at<const float>(params, 2);
  const float eps = *at<const float>(params, 3);
  float *y = at<float>(params, 4), *moments = at<float>(params, 5);
  parallel(rows, n, [=](int64_t r) {
    const float* a = x + r * n;
    float *o = y + r * n, sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i];
    const float mean = sum / n;
    for (int64_t i = 0; i < n; ++i) squares += (a[i] - mean) * (a[i] - mean);
    const float scale = 1.0f / std::sqrt(squares / n + eps);
    for (int64_t i = 0; i < n; ++i) o[i] = (a[i] - mean) * scale * w[i] + b[i];
    moments[2 * r] = mean, moments[2 * r + 1] = scale;
  });
}

// x [rows, n], weight [n], moments [rows, 2], dy [rows, n] -> dx [rows, n], dweight [n], dbias [n]
OPERATOR(layer_norm_grad, 0) {
  const int64_t rows = shapes[0][0], n = shapes[0][1];
  const float *x = at<const float>(params, 0), *w = at<const float>(params, 1), *moments = at<const float>(params, 2);
  const float* dy = at<const float>(params, 3);
  float *dx = at<float>(params, 4), *dw = at<float>(params, 5), *db = at<float>(params, 6);
  const int threads = Pool::get().threads();
  std::vector<float> sums(2 * n * threads, 0.0f);
  Pool::get().run(rows, n, [&](int part, int64_t first, int64_t last) {
    float *sum_w = sums.data() + 2 * n * part, *sum_b = sum_w + n;
    for (int64_t r = first; r < last; ++r) {
      const float *a = x + r * n, *d = dy + r * n, mean = moments[2 * r], scale = moments[2 * r + 1];
      float *o = dx + r * n, sum = 0, product = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float normal = (a[i] - mean) * scale, g = d[i] * w[i];
        sum += g;
        product += g * normal;
        sum_w[i] += d[i] * normal;
        sum_b[i] += d[i];
      }
      sum /= n, product /= n;
      for (int64_t i = 0; i < n; ++i) o[i] = (d[i] * w[i] - sum - (a[i] - mean) * scale * product) * scale;
    }
  });
  for (int64_t i = 0; i < n; ++i) {
    dw[i] = db[i] = 0.0f;
    for (int part = 0; part < threads; ++part) dw[i] += sums[2 * n * part + i], db[i] += sums[2 * n * part + n + i];
  }
}

// x [rows, n] -> the sum over rows [n]
OPERATOR(column_sum, 0) {
  const int64_t rows = shapes[0][0], n = shapes[0][1];
  const float* x = at<const float>(params, 0);
  float* y = at<float>(params, 1);
  Pool::get().run(n, rows, [&](int, int64_t first, int64_t last) {
    std::fill(y + first, y + last, 0.0f);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = first; i < last; ++i) y[i] += x[r * n + i];
  });
}

// n tensors of any shapes -> the sum of each one's squares [n], the same whatever the number of threads
OPERATOR(square_sums, 0) {
  constexpr int64_t kPiece = 4096;
  const int n = count - 1;
  std::vector<int64_t> sizes(n, 1), pieces(n + 1, 0);  // pieces: how many come before those of a tensor
  for (int i = 0; i < n; ++i) {
    for (int axis = 0; axis < ndims[i]; ++axis) sizes[i] *= shapes[i][axis];
    pieces[i + 1] = pieces[i] + (sizes[i] + kPiece - 1) / kPiece;
  }
  std::vector<float> sums(pieces[n]);
  parallel(pieces[n], kPiece, [&](int64_t piece) {
    const int64_t i = std::upper_bound(pieces.begin(), pieces.end(), piece) - pieces.begin() - 1, first = (piece - pieces[i]) * kPiece;
    const float* x = at<const float>(params, static_cast<int>(i));
    float sum = 0;
    for (int64_t j = first; j < std::min(first + kPiece, sizes[i]); ++j) sum += x[j] * x[j];
    sums[piece] = sum;
  });
  for (int i = 0; i < n; ++i) {
    double total = 0;
    for (int64_t piece = pieces[i]; piece < pieces[i + 1]; ++piece) total += sums[piece];
    at<float>(params, n)[i] = static_cast<float>(total);
  }
}

// scores [batch, heads, t, t], scale [1] -> softmax(scale * scores) over what a row may see, 0 beyond
OPERATOR(causal_softmax, 0) {
  const int64_t t = shapes[0][3], rows = shapes[0][0] * shapes[0][1] * t;
  const float *scores = at<const float>(params, 0), scale = *at<const float>(params, 1);
  float* p = at<float>(params, 2);
  parallel(rows, t, [=](int64_t r) {
    const int64_t n = r % t + 1;
    const float* a = scores + r * t;
    float *y = p + r * t, highest = largest(a, n), sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += y[i] = fast_exp((a[i] - highest) * scale);
    for (int64_t i = 0; i < n; ++i) y[i] /= sum;
    std::fill(y + n, y + t, 0.0f);
  });
}

// logits [rows, n], labels int32 [rows], vocabulary int32 [1] (columns beyond it are padding)
// -> losses [rows] (NaN where there is no such label), 1 where the label is likeliest [rows], the losses' gradient by the logits [rows, n]
OPERATOR(cross_entropy, 0b110) {
  const int64_t rows = shapes[0][0], n = shapes[0][1], vocabulary = *at<const int32_t>(params, 2);
  const float* logits = at<const float>(params, 0);
  const int32_t* labels = at<const int32_t>(params, 1);
  float *losses = at<float>(params, 3), *hits = at<float>(params, 4), *gradient = at<float>(params, 5);
  parallel(rows, n, [=](int64_t r) {
    const float* a = logits + r * n;
    float *g = gradient + r * n, highest = largest(a, vocabulary), sum = 0;
    for (int64_t i = 0; i < vocabulary; ++i) sum += g[i] = fast_exp(a[i] - highest);
    for (int64_t i = 0; i < vocabulary; ++i) g[i] /= sum;
    std::fill(g + vocabulary, g + n, 0.0f);
    const int32_t label = labels[r];
    if (label < 0 || label >= vocabulary) {
      losses[r] = std::nanf(""), hits[r] = 0.0f;
      return;
    }
    losses[r] = highest + std::log(sum) - a[label];
    hits[r] = a[label] == highest;
    g[label] -= 1.0f;
  });
}
