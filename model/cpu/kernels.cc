// Operators of the CPU form that MindSpore's kernels are slow at; model/cpu_compiled.py compiles them and says what each takes.
//
// Called by MindSpore (ops.Custom, aot): inputs first, then outputs, all contiguous float32 but for labels. Rows are shared out
// to a few threads that sleep in between: OpenMP's would spin beside MindSpore's own unless an environment variable was set
// before MindSpore was imported.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace {

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool;  // never destroyed: its threads may outlive main
    return *pool;
  }
  void resize(int threads) {
    std::lock_guard<std::mutex> turn(turn_);
    while (static_cast<int>(helpers_.size()) + 1 < threads) {
      const int id = static_cast<int>(helpers_.size()) + 1;
      helpers_.emplace_back([this, id, seen = round_] { serve(id, seen); });
      helpers_.back().detach();
    }
    threads_ = std::max(1, std::min(threads, static_cast<int>(helpers_.size()) + 1));
  }
  // work(part, first, last) for a part of [0, rows) on each thread. Small work stays on this one.
  void run(int64_t rows, int64_t values_per_row, const std::function<void(int, int64_t, int64_t)>& work) {
    std::lock_guard<std::mutex> turn(turn_);
    const int parts = rows * values_per_row < 16384 ? 1 : static_cast<int>(std::min<int64_t>(threads_, rows));
    if (parts == 1) return work(0, 0, rows);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work, rows_ = rows, parts_ = parts, left_ = static_cast<int>(helpers_.size()), ++round_;
    }
    wake_.notify_all();
    work(0, 0, rows / parts);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
  }
  int threads() const { return threads_; }

 private:
  void serve(int id, uint64_t seen) {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      if (id < parts_) {
        const auto* work = work_;
        const int64_t rows = rows_, parts = parts_;
        lock.unlock();
        (*work)(id, rows * id / parts, rows * (id + 1) / parts);
        lock.lock();
      }
      if (--left_ == 0) done_.notify_one();
    }
  }
  std::mutex turn_, mutex_;  // turn_: one operator at a time
  std::condition_variable wake_, done_;
  std::vector<std::thread> helpers_;
  const std::function<void(int, int64_t, int64_t)>* work_ = nullptr;
  int64_t rows_ = 0;
  int parts_ = 0, left_ = 0, threads_ = 1;
  uint64_t round_ = 0;
};

template <typename Work>
void parallel(int64_t rows, int64_t values_per_row, Work work) {
  Pool::get().run(rows, values_per_row, [&](int, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) work(r);
  });
}

// exp by 2^n and a polynomial (the coefficients of Cephes' expf), in a form that compilers make vector code of.
inline float fast_exp(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float n = std::floor(x * 1.44269504f + 0.5f);
  x -= n * 0.693359375f;
  x -= n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * x * x + x + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return y * power;
}

// Of a[0 .. n), n > 0; by lanes, since compilers make no vector code of a plain maximum where there may be a NaN.
inline float largest(const float* a, int64_t n) {
  float lanes[16];
  std::fill(lanes, lanes + 16, a[0]);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] = lanes[j] < a[i + j] ? a[i + j] : lanes[j];
  float highest = *std::max_element(lanes, lanes + 16);
  for (; i < n; ++i) highest = std::max(highest, a[i]);
  return highest;
}

constexpr float kGelu1 = 1.5957691216057308f, kGelu3 = 0.044715f * kGelu1;  // 2 sqrt(2 / pi)

template <typename T>
T* at(void** params, int i) { return static_cast<T*>(params[i]); }

}  // namespace

// Anything but float32, or int32 where `ints` has a bit for the input, is refused: MindSpore hands over whatever there is.
static bool accepted(int count, const char** dtypes, unsigned ints) {
  for (int i = 0; i < count; ++i)
    if (std::strcmp(dtypes[i], ints >> i & 1 ? "int32" : "float32")) return false;
  return true;
}

#define OPERATOR(name, ints)                                                                                    \
  static void name##_of(void** params, int* ndims, int64_t** shapes);                                           \
  extern "C" int name(int count, void** params, int* ndims, int64_t** shapes, const char** dtypes, void*, void*) { \
    if (!accepted(count, dtypes, ints)) return 1;                                                               \
    name##_of(params, ndims, shapes);                                                                           \
    return 0;                                                                                                   \
  }                                                                                                             \
  static void name##_of(void** params, [[maybe_unused]] int* ndims, int64_t** shapes)

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

// p, dp [batch, heads, t, t], scale [1] -> the gradient of the scores
OPERATOR(causal_softmax_grad, 0) {
  const int64_t t = shapes[0][3], rows = shapes[0][0] * shapes[0][1] * t;
  const float *p = at<const float>(params, 0), *dp = at<const float>(params, 1), scale = *at<const float>(params, 2);
  float* ds = at<float>(params, 3);
  parallel(rows, t, [=](int64_t r) {
    const int64_t n = r % t + 1;
    const float *a = p + r * t, *d = dp + r * t;
    float *y = ds + r * t, sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * d[i];
    for (int64_t i = 0; i < n; ++i) y[i] = a[i] * (d[i] - sum) * scale;
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
