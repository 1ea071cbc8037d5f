#include "espalier/frontend/archive_for_tests.h"
#include "espalier/frontend/exported_program.h"
#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(pt2) {
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) {
        // The program; its table of weights stands behind a line of three dashes.
        constexpr std::string_view kBorder = "\n---\n";
        const auto border = text.find(kBorder);
        const bool table = border != std::string_view::npos;
        const std::string bytes = make_zip({{"archive_format", "pt2"},
                                            {"archive_version", "0"},
                                            {"models/model.json", std::string(text.substr(0, border))},
                                            {"data/weights/model_weights_config.json",
                                             std::string(table ? text.substr(border + kBorder.size())
                                                               : std::string_view(R"({"config": {}})"))},
                                            {"data/weights/weight_0", std::string(48, 0)}});
        ImportOptions options;
        options.loss_rule = LossRule::kOptional;
        return read_exported_program(bytes, "f", options).imported;
      },
      check_imported);
}
