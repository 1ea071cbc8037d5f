#pragma once

// Channels between processes: Gloo point to point, one tag per link. Devices of one process talk through an
// InProcessTransport. Includes libtorch; runtime/ only. The meeting place is a TCPStore that rank 0, or
// torchrun, hosts.

#include <cstdint>
#include <memory>
#include <vector>

#include "espalier/runtime/transport.h"

namespace espalier {

// `rank_of`: the worker of each device. Blocks until all workers are there; throws WorkerError where they are
// not within the time-out.
std::unique_ptr<Transport> make_gloo_transport(const World& world, std::vector<std::uint32_t> rank_of,
                                               Duration timeout);

}  // namespace espalier
