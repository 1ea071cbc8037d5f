#pragma once

// What every target promises: any bytes give a value or an InputError on one line. Anything else that is
// thrown, and a message of several lines, ends the program, which is how a fuzzer notices.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "espalier/base/check.h"

namespace espalier {

template <class F>
int accepts_or_refuses(const std::uint8_t* data, std::size_t size, F read) {
  try {
    read(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const InputError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}

}  // namespace espalier
