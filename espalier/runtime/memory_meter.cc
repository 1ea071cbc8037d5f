#include "espalier/runtime/memory_meter.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace espalier {
namespace {

thread_local MemoryMeter* current = nullptr;

// The last bytes of a block, wherever malloc lets it end.
struct Trailer {
  std::int64_t bytes = 0;
  std::uint64_t meter = 0;  // 0: none counted it
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
      Trailer trailer{static_cast<std::int64_t>(bytes), 0};
      if (current != nullptr) {
        trailer.meter = current->number();
        current->add(trailer.bytes);
      }
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
    if (current != nullptr) {
      Trailer trailer;
      std::memcpy(&trailer, trailer_of(block), sizeof(trailer));
      if (trailer.meter == current->number()) current->add(-trailer.bytes);
    }
    std::free(block);
  }
};

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

MemoryMeter::MemoryMeter() : number_(next_number()) {
  static Allocator allocator;
  [[maybe_unused]] static const bool installed = [] {
    c10::SetCPUAllocator(&allocator);
    return true;
  }();
}

MemoryMeter::Scope::Scope(MemoryMeter& meter) : before_(current) {
  current = &meter;
}

MemoryMeter::Scope::~Scope() {
  current = before_;
}

}  // namespace espalier
