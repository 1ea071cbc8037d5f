#pragma once

// Fingerprints of operator outputs, by which `verify` finds the first operator that differs. Includes
// libtorch; runtime/ only.

#include <cstdint>
#include <vector>

#include "espalier/runtime/stage_runner.h"

namespace espalier {

// An operator's outputs in one micro-batch at a glance.
struct OutputRecord {
  OperatorId op;
  std::uint32_t micro_batch = 0;
  std::uint64_t bits = 0;  // fingerprint of the bytes
  double norm = 0;
};

// Appends a record for each call of one micro-batch.
class OutputRecorder final : public CallObserver {
 public:
  OutputRecorder(const Graph& graph, std::uint32_t micro_batch, std::vector<OutputRecord>& records)
      : graph_(graph), micro_batch_(micro_batch), records_(records) {}

  void after(OperatorId op, const Tensors& tensors) override;

 private:
  const Graph& graph_;
  std::uint32_t micro_batch_;
  std::vector<OutputRecord>& records_;
};

}  // namespace espalier
