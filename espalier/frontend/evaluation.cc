#include "espalier/frontend/evaluation.h"

#include <algorithm>
#include <string_view>

namespace espalier {
namespace {

Argument* argument_named(Call& call, std::string_view name) {
  const auto found = std::find_if(call.arguments.begin(), call.arguments.end(),
                                  [&](const Argument& argument) { return argument.name == name; });
  return found == call.arguments.end() ? nullptr : &*found;
}

// Whether it is a normalisation that keeps no statistics.
bool lacks_statistics(Call& call) {
  if (call.target.find("norm") == std::string::npos) return false;
  const Argument* const mean = argument_named(call, "running_mean");
  return mean == nullptr || !std::holds_alternative<TensorId>(mean->value);
}

void switch_to_evaluation(Call& call) {
  if (!call.target.starts_with("aten::")) return;
  if (!lacks_statistics(call)) {
    for (const std::string_view name : {"train", "training", "use_input_stats"}) {
      if (Argument* const flag = argument_named(call, name);
          flag && std::holds_alternative<bool>(flag->value))
        flag->value = false;
    }
  }
  if (Argument* const p = argument_named(call, "dropout_p"); p != nullptr) p->value = 0.0;
}

}  // namespace

ExportedProgram evaluation_program(const ExportedProgram& program) {
  ExportedProgram result = program;
  for (Call& call : result.calls) switch_to_evaluation(call);
  return result;
}

}  // namespace espalier
