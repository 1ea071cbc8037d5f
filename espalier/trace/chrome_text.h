#pragma once

// What Chrome traces are written with, whoever writes one.

#include <string>
#include <string_view>

#include "espalier/base/units.h"

namespace espalier {

// Microseconds with three decimals, from integers: "12.345", "-0.001".
std::string chrome_time(Duration time);

// In quotes, escaped; bytes that are no UTF-8 are replaced.
std::string chrome_string(std::string_view words);

}  // namespace espalier
