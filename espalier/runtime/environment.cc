#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "espalier/base/check.h"
#include "espalier/base/host.h"
#include "espalier/runtime/clock_offset.h"
#include "espalier/runtime/runtime.h"

namespace espalier {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

std::uint32_t number(const char* name, const std::string& text, std::uint32_t max) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) {
    throw InputError(std::string(name) + "=" + text + ": expected a number from 0 to " + std::to_string(max));
  }
  return value;
}

}  // namespace

World world_from_environment() {
  World world;
  const std::string hints = variable("ESPALIER_SCHEDULER_HINTS").value_or("on");
  if (hints != "on" && hints != "off") {
    throw InputError("ESPALIER_SCHEDULER_HINTS=" + hints + ": expected on or off");
  }
  world.scheduler_hints = hints == "on" ? SchedulerHints::kGiven : SchedulerHints::kNone;
  const auto rank = variable("RANK");
  const auto size = variable("WORLD_SIZE");
  if (!rank && !size) return world;
  const auto address = variable("MASTER_ADDR");
  const auto port = variable("MASTER_PORT");
  const char* missing = !rank      ? "RANK"
                        : !size    ? "WORLD_SIZE"
                        : !address ? "MASTER_ADDR"
                        : !port    ? "MASTER_PORT"
                                   : nullptr;
  if (missing != nullptr) {
    throw InputError(std::string("the environment has no ") + missing +
                     ", but others of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: set all four or none");
  }
  world.size = number("WORLD_SIZE", *size, 65536);
  if (world.size == 0) throw InputError("WORLD_SIZE=0: expected at least 1");
  world.rank = number("RANK", *rank, world.size - 1);
  world.address = *address;
  world.port = static_cast<std::uint16_t>(number("MASTER_PORT", *port, 65535));
  if (const auto socket = variable("ESPALIER_STORE_SOCKET"); socket && world.rank == 0) {
    world.store_socket = static_cast<int>(number("ESPALIER_STORE_SOCKET", *socket, 1U << 20));
  }
  world.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (const auto count = variable("TORCHELASTIC_RESTART_COUNT")) {
    world.restart = number("TORCHELASTIC_RESTART_COUNT", *count, 1U << 30);
  }
  world.host = host_name();
  world.clock = name_of_clock(world.host + " " + variable("GROUP_RANK").value_or("0"));
  const auto local_rank = variable("LOCAL_RANK"), local_size = variable("LOCAL_WORLD_SIZE");
  if (local_rank && local_size) {
    world.local_size = std::max(1U, number("LOCAL_WORLD_SIZE", *local_size, world.size));
    world.local_rank = number("LOCAL_RANK", *local_rank, world.local_size - 1);
  }
  return world;
}

std::string machine_description() {
  return this_host().text();
}

std::string runtime_description() {
  std::string text = std::string("torch ") + TORCH_VERSION + ", cpu";
  if (at::hasCUDA()) {
    const auto count = static_cast<int>(at::detail::getCUDAHooks().deviceCount());
    if (count > 0) text += ", " + std::to_string(count) + " GPU" + (count > 1 ? "s" : "");
  }
  return text + ", " + std::to_string(this_host().processors) + " cores";
}

}  // namespace espalier
