#include "espalier/frontend/archive_for_tests.h"
#include "espalier/frontend/exported_program.h"
#include "tests/fuzz/check_imported.h"

using namespace espalier;  // NOLINT: a target is one function

ESPALIER_FUZZ_TARGET(pt2) {
  return accepts_or_refuses(
      data, size,
      [](std::string_view text) {
        // The program, its table of weights, the exporter's notes; between them a line of three dashes.
        const auto take = [&text](std::string_view otherwise) {
          constexpr std::string_view kBorder = "\n---\n";
          if (text.empty()) return std::string(otherwise);
          const auto border = text.find(kBorder);
          std::string part(text.substr(0, border));
          text = border == std::string_view::npos ? std::string_view() : text.substr(border + kBorder.size());
          return part;
        };
        const std::string program = take(""), table = take(R"({"config": {}})"), notes = take("{}");
        const std::string bytes = make_zip({{"archive_format", "pt2"},
                                            {"archive_version", "0"},
                                            {"models/model.json", program},
                                            {"data/weights/model_weights_config.json", table},
                                            {"extra/espalier.json", notes},
                                            {"data/weights/weight_0", std::string(48, 0)},
                                            {"data/weights/weight_1", ""}});
        ImportOptions options;
        options.loss_rule = LossRule::kOptional;
        return read_exported_program(bytes, "f", options).imported;
      },
      check_imported);
}
