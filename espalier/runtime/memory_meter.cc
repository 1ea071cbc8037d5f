#include "espalier/runtime/memory_meter.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace espalier {

struct MemoryMeter::Count {
  std::atomic<std::int64_t> live{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> users{1};  // the meter and its blocks

  void add(std::int64_t bytes) {
    users.fetch_add(1, std::memory_order_relaxed);
    const std::int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t before = peak.load(std::memory_order_relaxed);
    while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
  }
  void remove(std::int64_t bytes) {
    live.fetch_sub(bytes, std::memory_order_relaxed);
    leave();
  }
  void leave() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

namespace {

thread_local MemoryMeter::Count* current = nullptr;

// The last bytes of a block, wherever malloc lets it end.
struct Trailer {
  std::int64_t bytes = 0;
  MemoryMeter::Count* count = nullptr;  // null: no meter counts it
};

void* trailer_of(void* block) {
  return static_cast<char*>(block) + malloc_usable_size(block) - sizeof(Trailer);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 64;  // as torch's
    void* block = nullptr;
    if (bytes > 0) {
      const bool allocated = posix_memalign(&block, kAlignment, bytes + sizeof(Trailer)) == 0;
      TORCH_CHECK(allocated, "not enough memory: a tensor needs ", bytes, " bytes");
      const Trailer trailer{static_cast<std::int64_t>(bytes), current};
      if (current != nullptr) current->add(trailer.bytes);
      std::memcpy(trailer_of(block), &trailer, sizeof(trailer));
    }
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* block) {
    if (block == nullptr) return;
    Trailer trailer;
    std::memcpy(&trailer, trailer_of(block), sizeof(trailer));
    if (trailer.count != nullptr) trailer.count->remove(trailer.bytes);
    std::free(block);
  }
};

// The blocks of all GPUs that a meter counts. Never destroyed: torch frees blocks as the process ends.
class GpuBlocks {
 public:
  static GpuBlocks& all() {
    static auto* blocks = new GpuBlocks;
    return *blocks;
  }
  void allocated(void* block, std::int64_t bytes, MemoryMeter::Count* count) {
    count->add(bytes);
    const std::lock_guard guard(lock_);
    Trailer& entry = blocks_[block];
    if (entry.count != nullptr) entry.count->remove(entry.bytes);  // freed where nobody observed
    entry = {bytes, count};
  }
  void freed(void* block) {
    const std::lock_guard guard(lock_);
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    found->second.count->remove(found->second.bytes);
    blocks_.erase(found);
  }

 private:
  std::mutex lock_;
  std::unordered_map<void*, Trailer> blocks_;
};

}  // namespace

// torch carries it into its threads of backward.
class MemoryMeter::GpuObserver final : public c10::MemoryReportingInfoBase {
 public:
  explicit GpuObserver(Count* count) : count_(count) {
    count_->users.fetch_add(1, std::memory_order_relaxed);
  }
  GpuObserver(const GpuObserver&) = delete;
  GpuObserver& operator=(const GpuObserver&) = delete;
  ~GpuObserver() override { count_->leave(); }

  void reportMemoryUsage(void* block, std::int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    if (device.is_cpu()) return;
    if (bytes > 0) {
      GpuBlocks::all().allocated(block, bytes, count_);
    } else {
      GpuBlocks::all().freed(block);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  Count* count_;
};

MemoryMeter::MemoryMeter(c10::Device device) : count_(new Count) {
  if (!device.is_cpu()) {
    observer_ = std::make_shared<GpuObserver>(count_);
    return;
  }
  static Allocator allocator;
  [[maybe_unused]] static const bool installed = [] {
    c10::SetCPUAllocator(&allocator);
    return true;
  }();
}

MemoryMeter::~MemoryMeter() {
  count_->leave();
}

Bytes MemoryMeter::live() const {
  return Bytes(count_->live.load(std::memory_order_relaxed));
}

Bytes MemoryMeter::restart_peak() {
  return Bytes(
      count_->peak.exchange(count_->live.load(std::memory_order_relaxed), std::memory_order_relaxed));
}

MemoryMeter::Scope::Scope(MemoryMeter& meter)
    : before_(std::exchange(current, meter.observer_ ? nullptr : meter.count_)),
      observes_(meter.observer_ != nullptr) {
  if (observes_) c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, meter.observer_);
}

MemoryMeter::Scope::~Scope() {
  if (observes_) c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
  current = before_;
}

}  // namespace espalier
