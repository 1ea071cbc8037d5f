#include "testing/evaluations.h"

#include <sstream>

namespace espalier::testing {

Evaluation summary_of(const Trace& trace, const Cluster& cluster) {
  Evaluation result{trace.iteration, std::vector<MemoryByCategory>(cluster.devices().size()), {}};
  for (std::size_t d = cluster.devices().size(); d-- > 0;) {
    Bytes most(-1);
    for (const MemorySample& sample : trace.memory) {
      if (sample.device.index() != d) continue;
      Bytes total;
      for (const Bytes bytes : sample.held.bytes) total += bytes;
      if (total > most) most = total, result.peak[d] = sample.held;
    }
    if (most > cluster.devices()[d].memory) result.overflow = DeviceId(d);
  }
  return result;
}

std::string text(const Evaluation& evaluation) {
  std::ostringstream out;
  out << evaluation.iteration.count() << " ns";
  for (const MemoryByCategory& peak : evaluation.peak) {
    out << " [";
    for (const Bytes bytes : peak.bytes) out << ' ' << bytes.count();
    out << " ]";
  }
  if (evaluation.overflow) out << " overflow " << evaluation.overflow->index();
  return out.str();
}

}  // namespace espalier::testing
