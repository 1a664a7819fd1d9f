#include "walker.hpp"

#include <aie_api/aie.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace tilegate {
namespace {

constexpr std::size_t kAlignment = 64;  // what 512-bit accesses of a core need

std::int64_t value(const Affine &affine, const std::int64_t *variables) {
  std::int64_t sum = affine.base;
  for (int i = 0; i < kVariables; ++i) {
    sum += affine.coefficient[i] * variables[i];
  }
  return sum;
}

struct Memory {
  char *data = nullptr;
  std::size_t size = 0;

  Memory() = default;
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  ~Memory() { std::free(data); }

  void reserve(std::size_t bytes) {
    if (bytes > size) {
      std::free(data);
      size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      data = static_cast<char *>(std::aligned_alloc(kAlignment, size));
      if (data == nullptr) {
        std::abort();
      }
    }
  }
};

template <int Bytes>
inline void move_runs(const Copy &copy, int first, const char *source, char *target) {
  const std::int64_t n = copy.size[first];
  const std::int64_t from = copy.source_stride[first] * copy.element_bytes;
  const std::int64_t to = copy.target_stride[first] * copy.element_bytes;
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(target + i * to, source + i * from, Bytes);
  }
}

// Dimensions [first, last) are iterated, the rest of the run is `run` contiguous bytes.
void move(const Copy &copy, int first, int last, std::size_t run, const char *source, char *target) {
  if (first == last) {
    std::memcpy(target, source, run);
    return;
  }
  if (first + 1 == last) {
    switch (run) {
      case 2: return move_runs<2>(copy, first, source, target);
      case 4: return move_runs<4>(copy, first, source, target);
      case 16: return move_runs<16>(copy, first, source, target);
      case 32: return move_runs<32>(copy, first, source, target);
      default: break;
    }
  }
  const std::int64_t from = copy.source_stride[first] * copy.element_bytes;
  const std::int64_t to = copy.target_stride[first] * copy.element_bytes;
  for (std::int64_t i = 0; i < copy.size[first]; ++i) {
    move(copy, first + 1, last, run, source + i * from, target + i * to);
  }
}

// The columns [low, high) of the herd, walked by one host thread.
class Columns {
 public:
  void execute(const Launch &launch, void *const *arguments, int low, int high) {
    launch_ = &launch;
    arguments_ = arguments;
    low_ = low;
    high_ = high;
    place_buffers();
    std::memset(variables_, 0, sizeof variables_);
    walk(0, launch.step_count);
  }

 private:
  const Launch *launch_ = nullptr;
  void *const *arguments_ = nullptr;
  int low_ = 0, high_ = 0;
  std::int64_t variables_[kVariables] = {};
  Memory memory_;
  std::vector<std::size_t> first_;       // buffer -> its first instance
  std::vector<char *> home_, instance_;  // own storage, and where it points now

  void place_buffers() {
    const int columns = high_ - low_;
    first_.clear();
    std::size_t instances = 0, bytes = 0;
    for (int i = 0; i < launch_->buffer_count; ++i) {
      const Buffer &buffer = launch_->buffers[i];
      first_.push_back(instances);
      const std::size_t count = static_cast<std::size_t>((buffer.per_x ? columns : 1) *
                                                         (buffer.per_y ? launch_->rows : 1));
      instances += count;
      bytes += count * stride(buffer);
    }
    memory_.reserve(bytes);
    home_.assign(instances, nullptr);
    char *next = memory_.data;
    for (int i = 0; i < launch_->buffer_count; ++i) {
      const Buffer &buffer = launch_->buffers[i];
      const std::size_t end = i + 1 < launch_->buffer_count ? first_[static_cast<std::size_t>(i) + 1]
                                                            : instances;
      for (std::size_t k = first_[static_cast<std::size_t>(i)]; k < end; ++k) {
        home_[k] = next;
        if (!buffer.aliased_only) {
          std::memset(next, 0xff, stride(buffer));  // NaN: nothing survives from launch to launch
        }
        next += stride(buffer);
      }
    }
    instance_ = home_;
  }

  static std::size_t stride(const Buffer &buffer) {
    return (static_cast<std::size_t>(buffer.bytes) + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::size_t instance_of(const Place &place) const {
    const auto index = static_cast<std::size_t>(-1 - place.target);
    const Buffer &buffer = launch_->buffers[index];
    std::size_t at = first_[index];
    if (buffer.per_x) {
      const auto x = static_cast<std::size_t>(value(place.at_x, variables_) - low_);
      at += x * static_cast<std::size_t>(buffer.per_y ? launch_->rows : 1);
    }
    if (buffer.per_y) {
      at += static_cast<std::size_t>(value(place.at_y, variables_));
    }
    return at;
  }

  char *address(const Place &place) const {
    const std::int64_t offset = value(place.offset, variables_);
    if (place.target >= 0) {
      return static_cast<char *>(arguments_[launch_->arguments[place.target]]) +
             offset * launch_->tensor_bytes[place.target];
    }
    return instance_[instance_of(place)] +
           offset * launch_->buffers[-1 - place.target].element_bytes;
  }

  void walk(int begin, int end) {
    for (int i = begin; i < end;) {
      const Step &step = launch_->steps[i];
      if (step.kind == Kind::loop) {
        for (std::int64_t trip = 0; trip < step.count; ++trip) {
          variables_[step.index] = trip;
          walk(i + 1, step.end);
        }
        i = step.end;
        continue;
      }
      const int first = std::max(low_, step.column_low), last = std::min(high_, step.column_high);
      const int columns = step.over_x ? last : std::min(last, first + 1);
      const int top = step.over_y ? step.row_high : step.row_low + 1;
      for (int x = first; x < columns; ++x) {
        variables_[0] = x;
        for (int y = step.row_low; y < top; ++y) {
          variables_[1] = y;
          if (step.kind == Kind::copy) {
            copy(launch_->copies[step.index]);
          } else {
            call(launch_->calls[step.index]);
          }
        }
      }
      ++i;
    }
  }

  void copy(const Copy &copy) {
    const char *source = address(copy.source);
    if (copy.alias && reinterpret_cast<std::uintptr_t>(source) % kAlignment == 0) {
      instance_[instance_of(copy.target)] = const_cast<char *>(source);
      return;
    }
    if (copy.alias) {
      const std::size_t at = instance_of(copy.target);
      instance_[at] = home_[at];
    }
    char *target = address(copy.target);
    int last = copy.dimensions;
    auto run = static_cast<std::size_t>(copy.element_bytes);
    if (last > 0 && copy.source_stride[last - 1] == 1 && copy.target_stride[last - 1] == 1) {
      --last;
      run *= static_cast<std::size_t>(copy.size[last]);
    }
    move(copy, 0, last, run, source, target);
    if (copy.matrix) {
      aie::block_float::round_tiles(reinterpret_cast<std::uint16_t *>(target),
                                    static_cast<std::size_t>(copy.tiles), copy.matrix == 1);
    }
  }

  void call(const Call &call) {
    void *pointers[kArguments];
    std::int32_t scalars[kArguments];
    for (int i = 0; i < call.pointers; ++i) {
      pointers[i] = address(call.pointer[i]);
    }
    for (int i = 0; i < call.scalars; ++i) {
      scalars[i] = static_cast<std::int32_t>(value(call.scalar[i], variables_));
    }
    // A core powers up in floor; a function that needs another mode has to set it itself.
    aie::set_rounding(aie::rounding_mode::floor);
    call.function(pointers, scalars);
  }
};

// Workers that outlive a dispatch: starting threads per launch would cost more than a small launch.
class Pool {
 public:
  // The pool of this library, or the one that it was told to share.
  static Pool *&get() {
    static Pool *pool = nullptr;  // never destroyed: its workers wait on it until the end
    return pool;
  }

  void run(const Launch &launch, void *const *arguments, int threads) {
    threads = std::max(1, std::min(threads, launch.columns));
    if (threads == 1) {
      columns(0).execute(launch, arguments, 0, launch.columns);
      return;
    }
    grow(threads);
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      launch_ = &launch;
      arguments_ = arguments;
      shares_ = threads;
      pending_.store(threads - 1, std::memory_order_relaxed);
      epoch_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    share(0);
    while (pending_.load(std::memory_order_acquire) != 0) {
      std::this_thread::yield();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<int> pending_{0};
  const Launch *launch_ = nullptr;
  void *const *arguments_ = nullptr;
  int shares_ = 1;
  std::vector<std::thread> workers_;
  std::vector<Columns *> columns_;

  Columns &columns(std::size_t index) {
    while (columns_.size() <= index) {
      columns_.push_back(new Columns);  // lives as long as the process, like its worker
    }
    return *columns_[index];
  }

  void grow(int threads) {
    columns(static_cast<std::size_t>(threads) - 1);
    while (static_cast<int>(workers_.size()) < threads - 1) {
      const int index = static_cast<int>(workers_.size()) + 1;
      const std::uint64_t seen = epoch_.load();
      workers_.emplace_back([this, index, seen] { serve(index, seen); });
      workers_.back().detach();
    }
  }

  void share(int index) {
    const int all = launch_->columns;
    const int low = all * index / shares_, high = all * (index + 1) / shares_;
    if (low < high) {
      columns_[static_cast<std::size_t>(index)]->execute(*launch_, arguments_, low, high);
    }
  }

  [[noreturn]] void serve(int index, std::uint64_t seen) {
    for (;;) {
      for (int spin = 0; spin < 2000 && epoch_.load(std::memory_order_acquire) == seen; ++spin) {
        std::this_thread::yield();
      }
      if (epoch_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
      }
      seen = epoch_.load(std::memory_order_acquire);
      if (index < shares_) {
        share(index);
        pending_.fetch_sub(1, std::memory_order_release);
      }
    }
  }
};

}  // namespace

void *pool(void *shared) {
  Pool *&own = Pool::get();
  if (shared != nullptr) {
    own = static_cast<Pool *>(shared);
  } else if (own == nullptr) {
    own = new Pool;
  }
  return own;
}

int run(const Launch *launches, int launch_count, void *const *arguments, int threads) {
  Pool &workers = *static_cast<Pool *>(pool(nullptr));
  for (int i = 0; i < launch_count; ++i) {
    workers.run(launches[i], arguments, threads);
  }
  return 0;
}

}  // namespace tilegate
