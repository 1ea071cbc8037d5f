#include "espalier/runtime/store.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "espalier/base/check.h"

namespace espalier {
namespace {

// The store takes over the socket that it is given, and the next try needs one too.
int copy_of(int socket) {
  const int copy = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) return copy;
  throw InputError("ESPALIER_STORE_SOCKET=" + std::to_string(socket) +
                   ": no such open file: " + std::strerror(errno) + "; the launcher sets it, for worker 0");
}

}  // namespace

std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with("[/")) text.erase(0, std::min(text.find("] ") + 2, text.size()));
  return text.substr(0, text.find(". This is typically"));
}

c10::intrusive_ptr<c10d::Store> open_store(const World& world, Duration timeout, StoreRole role) {
  c10d::TCPStoreOptions options;
  options.port = world.port;
  options.isServer = role == StoreRole::kMember && world.rank == 0 && !world.agent_store;
  options.numWorkers = world.size;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(timeout.count() / 1'000'000);
  const auto connect = [&] {
    if (options.isServer && world.store_socket) options.masterListenFd = copy_of(*world.store_socket);
    return c10::make_intrusive<c10d::TCPStore>(world.address, options);
  };
  c10::intrusive_ptr<c10d::TCPStore> store;
  try {
    store = connect();
  } catch (const std::exception& error) {
    if (std::string(error.what()).find("without libuv") == std::string::npos) throw;
    options.useLibUV = false;
    store = connect();
  }
  return c10::make_intrusive<c10d::PrefixStore>("espalier/" + std::to_string(world.restart), store);
}

}  // namespace espalier
