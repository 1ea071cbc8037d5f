#pragma once

// What drawings share: colours of stages and modules, and text that XML can hold.

#include <cstddef>
#include <string>
#include <string_view>

namespace espalier {

inline constexpr std::size_t kHues = 8;

// ".f0{fill:…}.b0{fill:…}.f1…": each hue in a light tone for forward and a dark one for backward.
std::string hue_classes();

// `&`, `<` and `>` escaped, control characters left out.
std::string xml_text(std::string_view text);

}  // namespace espalier
