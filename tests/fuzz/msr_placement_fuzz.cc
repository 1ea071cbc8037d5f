#include "espalier/frontend/imported.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(msr_placement) {
  static const Imported kModel = import_msr(
      R"({"maxSizePerFPGA": 100, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
        {"id": 1, "name": "a", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 1},
        {"id": 2, "name": "b", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 1,
         "colorClass": 3},
        {"id": 3, "name": "b", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 1, "size": 1,
         "colorClass": 3}],
        "edges": [{"sourceId": 1, "destId": 2, "cost": 1}]})",
      "m");
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) { return import_msr_placement(text, "f", kModel.graph, *kModel.cluster); },
      [](const Placement& placement) {
        require(check_placement(kModel.graph, *kModel.cluster, placement).empty());
      });
}
