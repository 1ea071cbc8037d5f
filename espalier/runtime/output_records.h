#pragma once

// Records of operators' outputs as text, from worker to worker: a line "<operator> <micro-batch> <bits>
// <norm>" each. Includes libtorch; runtime/ only.

#include <string>
#include <string_view>
#include <vector>

#include "espalier/runtime/executor.h"

namespace espalier {

std::string print_records(const std::vector<OutputRecord>& records);

// Throws WorkerError "<worker> told a record …" for any other text.
std::vector<OutputRecord> parse_records(std::string_view text, const std::string& worker);

}  // namespace espalier
