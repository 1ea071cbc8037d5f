#include "espalier/schedule/pytorch_csv.h"

#include "espalier/schedule/order_file.h"
#include "tests/fuzz/chain_of_two.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(pytorch_csv) {
  static const Cluster kCluster = parse_cluster("2xV100-16GB");
  static const StagedModel kModel = [] {
    StagedModel model = chain_of_two();
    model.stages[0].memory.gradients = Bytes(8);  // the other stage cannot be split
    return model;
  }();
  return accepts_or_refuses(
      data, size, [](std::string_view text) { return parse_pytorch_csv(text, "f", kModel, kCluster); },
      [](const OrderLists& lists) {
        const StagedModel model = with_orders(kModel, Orders(lists));
        const Schedule schedule = make_schedule(model, 2);
        if (!check_schedule(model, schedule).empty()) return;
        require(parse_pytorch_csv(print_pytorch_csv(model, schedule), "f", kModel, kCluster) == lists);
      });
}
