#pragma once

// What every target promises: any bytes give a value or an InputError on one line. Anything else that is
// thrown, and a message of several lines, ends the program, which is how a fuzzer notices.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "espalier/base/check.h"

namespace espalier {

inline std::size_t accepted_inputs = 0;  // the replay asks: a corpus of refused inputs alone has gone stale

// `read` gives a value or an InputError. What `check` does with the value must not fail at all.
template <class Read, class Check>
int accepts_or_refuses(const std::uint8_t* data, std::size_t size, Read read, Check check) {
  using Value = decltype(read(std::string_view()));
  std::optional<Value> value;
  try {
    value.emplace(read(std::string_view(reinterpret_cast<const char*>(data), size)));
  } catch (const InputError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
    return 0;
  }
  ++accepted_inputs;
  check(*value);
  return 0;
}

template <class Read>
int accepts_or_refuses(const std::uint8_t* data, std::size_t size, Read read) {
  return accepts_or_refuses(
      data, size,
      [&read](std::string_view text) {
        read(text);
        return true;
      },
      [](bool) {});
}

inline void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace espalier
