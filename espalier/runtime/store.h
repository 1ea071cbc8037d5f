#pragma once

// The meeting place of a run's workers. Includes libtorch; runtime/ only.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "espalier/runtime/runtime.h"

namespace espalier {

enum class StoreRole {
  kMember,  // hosts the store if it is rank 0 and torchrun does not
  kClient,  // never hosts it
};

// Connects. Keys of an earlier try (World::restart) are not seen. Rank 0 hosts it on World::store_socket
// where the launcher reserved one. Throws what c10d throws, of the first try: a libtorch without libuv is
// asked again for its plain backend.
c10::intrusive_ptr<c10d::Store> open_store(const World& world, Duration timeout, StoreRole role);

// What c10d and Gloo say, without their source lines and advice: "Read error [127.0.0.1]:2258: Connection
// reset by peer".
std::string reason_of(const std::exception& error);

}  // namespace espalier
