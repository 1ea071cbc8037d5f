#include "espalier/report/svg_parts.h"

#include <fmt/format.h>

#include <array>

namespace espalier {
namespace {

struct Hue {
  const char* forward;
  const char* backward;
};
constexpr std::array<Hue, kHues> kTones{{{"#9ecbf7", "#3a7cc6"},
                                         {"#f9c48f", "#d8741b"},
                                         {"#a9dda2", "#3c9644"},
                                         {"#efb4db", "#b94d95"},
                                         {"#98ddd6", "#1f9188"},
                                         {"#f0dd88", "#b08c0c"},
                                         {"#f6aea7", "#ca463b"},
                                         {"#c9c0f4", "#6f5fc6"}}};

}  // namespace

std::string hue_classes() {
  std::string out;
  for (std::size_t i = 0; i < kHues; ++i)
    out += fmt::format(".f{0}{{fill:{1}}}.b{0}{{fill:{2}}}", i, kTones[i].forward, kTones[i].backward);
  return out;
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    }
  }
  return out;
}

}  // namespace espalier
