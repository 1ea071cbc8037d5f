#include "espalier/runtime/workers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/handshake.h"
#include "espalier/runtime/store.h"
#include "espalier/runtime/transport_gloo.h"

namespace espalier {
namespace {

constexpr Duration kLeastJoin = milliseconds(60'000);
constexpr std::int64_t kLongestText = std::int64_t{1} << 30;

c10::intrusive_ptr<c10d::Store> meeting_place(const World& world, Duration join) {
  try {
    return open_store(world, join, StoreRole::kMember);
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    throw WorkerError("the workers did not meet at " + world.address + ":" + std::to_string(world.port) +
                      ": " + reason_of(error));
  }
}

// `used`: the devices with work, ascending; `names`: of all devices.
Workers join(const World& world, const std::vector<DeviceId>& used, const std::vector<std::string>& names,
             const JoinOptions& options) {
  if (used.empty()) throw InputError("the plan gives no device anything to do");
  if (world.size > used.size()) {
    throw InputError("there are " + std::to_string(world.size) + " workers, but the plan uses " +
                     std::to_string(used.size()) + " devices: start at most one worker for each");
  }
  const std::vector<std::uint32_t> dealt = deal_devices(used.size(), world.size);
  std::vector<std::uint32_t> rank_of(names.size(), 0);
  Workers workers;
  workers.first_devices.resize(world.size);
  for (std::size_t i = used.size(); i-- > 0;) {
    rank_of[used[i].index()] = dealt[i];
    workers.first_devices[dealt[i]] = used[i];
  }
  std::vector<std::string> workers_names(world.size);
  for (std::uint32_t rank = 0; rank < world.size; ++rank) {
    std::string hosted;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (dealt[i] == rank) hosted += (hosted.empty() ? "" : ", ") + names[used[i].index()];
    }
    workers_names[rank] = "worker " + std::to_string(rank) + " (" + hosted + ")";
  }
  if (world.size == 1) {
    workers.transport = std::make_unique<InProcessTransport>(options.timeout);
    workers.all = {{workers_names[0], world.host, world.clock}};
    return workers;
  }
  const Duration join_within = std::max(options.timeout, kLeastJoin);
  const auto store = meeting_place(world, join_within);
  workers.all = shake_hands(*store, world,
                            {workers_names[world.rank], world.size, world.host, world.clock, options.facts},
                            join_within);
  const auto somebody_busy = std::make_shared<std::atomic<bool>>(false);
  workers.transport =
      make_gloo_transport(store, world, rank_of, join_within, {options.timeout, somebody_busy});
  WatchdogOptions watch{.world = world, .workers = std::move(workers_names)};
  watch.abort = [transport = workers.transport.get()](const std::string& reason) {
    transport->abort(reason);
  };
  watch.stuck = options.on_stuck;
  watch.somebody_busy = somebody_busy;
  workers.watchdog = std::make_unique<Watchdog>(std::move(watch));
  return workers;
}

}  // namespace

Workers join_workers(const World& world, const PlannedJob& job, const JoinOptions& options) {
  return join(world, devices_with_work(job.schedule), job.device_names, options);
}

Workers join_workers(const World& world, const JoinOptions& options) {
  std::vector<DeviceId> used;
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < world.size; ++rank) {
    used.push_back(DeviceId(rank));
    names.push_back("worker " + std::to_string(rank));
  }
  return join(world, used, names, options);
}

std::vector<std::vector<double>> wait_for_all(Workers& workers, const std::string& where,
                                              std::span<const double> mine) {
  try {
    return exchange(*workers.transport, workers.first_devices, mine);
  } catch (const WorkerError& error) {
    throw WorkerError("it waits for the other workers at " + where + ": " + error.what());
  }
}

std::vector<std::string> gather(Workers& workers, const std::string& mine) {
  Transport& transport = *workers.transport;
  const auto size = static_cast<std::int64_t>(mine.size());
  const auto sizes = exchange(transport, workers.first_devices, std::span(&size, 1));
  std::vector<std::string> all(transport.ranks());
  const auto link = [&](std::uint32_t rank) {
    return Link{workers.first_devices[rank], workers.first_devices[0], Lane::kControl};
  };
  if (transport.rank() != 0) {
    if (mine.empty()) return {};
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
    transport.post_send(link(transport.rank()), bytes)->wait();
    return {};
  }
  all[0] = mine;
  for (std::uint32_t r = 1; r < transport.ranks(); ++r) {
    const std::int64_t length = sizes[r][0];
    if (length < 0 || length > kLongestText) {
      throw WorkerError(workers.all[r].worker + " told a text of " + std::to_string(length) +
                        " bytes; expected 0 to " + std::to_string(kLongestText));
    }
    if (length == 0) continue;
    const at::Tensor bytes = transport.post_receive(link(r), at::kByte, length)->wait();
    all[r].assign(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  return all;
}

at::Tensor fetch(Workers& workers, DeviceId owner, const at::Tensor& mine, at::ScalarType type,
                 const std::vector<std::int64_t>& sizes) {
  Transport& transport = *workers.transport;
  const std::uint32_t rank = transport.rank_of(owner);
  if (rank == 0) return mine;
  const Link link{workers.first_devices[rank], workers.first_devices[0], Lane::kControl};
  const std::int64_t elements = c10::multiply_integers(sizes);
  if (elements == 0) return at::empty(sizes, type);
  if (transport.rank() == rank) {
    transport.post_send(link, mine.cpu().contiguous().view({-1}))->wait();
  } else if (transport.rank() == 0) {
    return transport.post_receive(link, type, elements)->wait().view(sizes);
  }
  return {};
}

}  // namespace espalier
