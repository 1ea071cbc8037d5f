#include "espalier/runtime/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace espalier {

c10::intrusive_ptr<c10d::Store> open_store(const World& world, Duration timeout, StoreRole role) {
  c10d::TCPStoreOptions options;
  options.port = world.port;
  options.isServer = role == StoreRole::kMember && world.rank == 0 && !world.agent_store;
  options.numWorkers = world.size;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(timeout.count() / 1'000'000);
  c10::intrusive_ptr<c10d::TCPStore> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(world.address, options);
  } catch (const std::exception&) {
    options.useLibUV = false;
    store = c10::make_intrusive<c10d::TCPStore>(world.address, options);
  }
  return c10::make_intrusive<c10d::PrefixStore>("espalier/" + std::to_string(world.restart), store);
}

}  // namespace espalier
