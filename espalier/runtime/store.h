#pragma once

// The meeting place of a run's workers. Includes libtorch; runtime/ only.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "espalier/runtime/runtime.h"

namespace espalier {

enum class StoreRole {
  kMember,
  kClient
};  // a member hosts it if it is rank 0 and nobody else does; a client never

// Connects, with keys apart by restart count. Falls back to the plain backend where libtorch has no libuv.
// Throws what c10d throws.
c10::intrusive_ptr<c10d::Store> open_store(const World& world, Duration timeout, StoreRole role);

}  // namespace espalier
