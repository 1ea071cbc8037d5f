#include "espalier/runtime/torch_device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <array>

#include "espalier/base/check.h"
#include "espalier/cluster/cluster.h"

namespace espalier {

namespace {

int gpus_here() {
  return at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
}

// "NVIDIA H200"; nothing where no driver answers. The driver's own library is asked, which is found when it
// is needed: neither headers nor libraries of CUDA are, to build.
std::string gpu_name(int index) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return {};
  const auto initialise = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(::dlsym(driver, "cuDeviceGetName"));
  if (initialise == nullptr || get == nullptr || name_of == nullptr) return {};
  std::array<char, 256> name{};
  int device = 0;
  const bool told = initialise(0) == 0 && get(&device, index) == 0 &&
                    name_of(name.data(), static_cast<int>(name.size()) - 1, device) == 0;
  return told ? name.data() : "";
}

}  // namespace

at::Device device_of_worker(const std::string& text, const World& world) {
  return device_of_worker(text, world, gpus_here());
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

int gpus_of_device(const std::string& device) {
  if (!device_of_worker(device, {}).is_cuda()) return 0;
  return device.empty() || device == "cuda" ? gpus_here() : 1;
}

std::string kind_here(const std::string& device) {
  const at::Device here = device_of_worker(device, {});
  if (!here.is_cuda()) return "cpu";
  const std::string name = gpu_name(here.index());
  return name.empty() ? "cuda" : kind_called(name);
}

Clock::time_point DeviceClock::now() const {
  if (device_.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device_.index());
  return Clock::now();
}

}  // namespace espalier
