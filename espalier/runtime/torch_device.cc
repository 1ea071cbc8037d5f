#include "espalier/runtime/torch_device.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include "espalier/base/check.h"

namespace espalier {

at::Device parse_device(const std::string& text) {
  if (text == "cpu") return at::kCPU;
  const bool gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  if (text.empty()) return gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (text.rfind("cuda", 0) == 0) {
    if (!gpu) throw InputError("--device " + text + ": there is no GPU that this libtorch can use; use cpu");
    try {
      const at::Device device(text);
      return device.has_index() ? device : at::Device(at::kCUDA, 0);
    } catch (const c10::Error&) {
      // below
    }
  }
  throw InputError("--device " + text + ": expected cpu, cuda or cuda:1");
}

}  // namespace espalier
