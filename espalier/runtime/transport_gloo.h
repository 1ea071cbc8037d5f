#pragma once

// Channels between processes: Gloo point to point, one tag per link. Devices of one process talk through an
// InProcessTransport. Includes libtorch; runtime/ only.

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "espalier/runtime/transport.h"

namespace espalier {

// `store`: where the workers meet (store.h); `rank_of`: the worker of each device. Blocks until all workers
// are there; throws WorkerError where they are not within `join`. `patience` is for messages.
std::unique_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, const World& world,
                                               std::vector<std::uint32_t> rank_of, Duration join,
                                               const Patience& patience);

}  // namespace espalier
