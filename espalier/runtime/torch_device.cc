#include "espalier/runtime/torch_device.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include "espalier/base/check.h"

namespace espalier {

at::Device device_of_worker(const std::string& text, const World& world) {
  const int gpus = at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  return device_of_worker(text, world, gpus);
}

at::Device device_of_worker(const std::string& text, const World& world, int gpus) {
  if (text == "cpu" || (text.empty() && gpus == 0)) return at::kCPU;
  if (text.empty() || text == "cuda") {
    if (gpus == 0) {
      throw InputError("--device cuda: there is no GPU that this libtorch can use; use cpu");
    }
    return {at::kCUDA, static_cast<at::DeviceIndex>(world.local_rank % static_cast<std::uint32_t>(gpus))};
  }
  for (int i = 0; i < gpus; ++i) {
    if (text == "cuda:" + std::to_string(i)) return {at::kCUDA, static_cast<at::DeviceIndex>(i)};
  }
  if (text.starts_with("cuda:")) {
    throw InputError("--device " + text + ": this libtorch can use " + std::to_string(gpus) + " GPU" +
                     (gpus == 1 ? "" : "s") + (gpus == 0 ? "; use cpu" : ", counted from 0"));
  }
  throw InputError("--device " + text + ": expected cpu, cuda or cuda:1");
}

std::string kind_of_device(const std::string& device) {
  return device_of_worker(device, {}).is_cuda() ? "cuda" : "cpu";
}

Clock::time_point DeviceClock::now() const {
  if (device_.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device_.index());
  return Clock::now();
}

}  // namespace espalier
