// What the operators share. Called by MindSpore (ops.Custom, aot): inputs first, then outputs, all contiguous float32 but for labels
// and sizes. Work is shared out to a few threads that sleep in between: OpenMP's would spin beside MindSpore's own unless an
// environment variable was set before MindSpore was imported.
#pragma once
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mindgpt {

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

template <typename T>
T* at(void** params, int i) { return static_cast<T*>(params[i]); }

}  // namespace mindgpt

using namespace mindgpt;

// Anything but float32, or int32 where `ints` has a bit for the input, is refused: MindSpore hands over whatever there is, and of a
// refusal it says no more than that the operator failed.
static bool accepted(const char* name, int count, const char** dtypes, unsigned ints) {
  for (int i = 0; i < count; ++i) {
    const char* wanted = i < 32 && ints >> i & 1 ? "int32" : "float32";
    if (std::strcmp(dtypes[i], wanted)) {
      std::fprintf(stderr, "operator %s: input or output %d is %s, and must be %s\n", name, i, dtypes[i], wanted);
      return false;
    }
  }
  return true;
}

#define OPERATOR(name, ints)                                                                                    \
  static void name##_of(int count, void** params, int* ndims, int64_t** shapes);                                \
  extern "C" int name(int count, void** params, int* ndims, int64_t** shapes, const char** dtypes, void*, void*) { \
    if (!accepted(#name, count, dtypes, ints)) return 1;                                                        \
    name##_of(count, params, ndims, shapes);                                                                    \
    return 0;                                                                                                   \
  }                                                                                                             \
  static void name##_of([[maybe_unused]] int count, void** params, [[maybe_unused]] int* ndims, int64_t** shapes)
