#include "espalier/runtime/output_record.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string_view>

#include "espalier/base/hash.h"

namespace espalier {

void OutputRecorder::after(OperatorId op, const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Fingerprint print;
  double squares = 0;
  for (const TensorId id : graph_.op(op).outputs) {
    const at::Tensor& tensor = tensors[id.index()];
    if (!tensor.defined()) continue;
    const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    print.add(std::string_view(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()));
    if (dense.is_floating_point() || dense.is_complex()) {
      squares += dense.abs().to(at::kDouble).square().sum().item<double>();
    }
  }
  records_.push_back({op, micro_batch_, print.value(), std::sqrt(squares)});
}

}  // namespace espalier
