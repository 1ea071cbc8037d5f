#pragma once

// What every target promises: any bytes give a value or an InputError on one line. Anything else that is
// thrown, and a message of several lines, ends the program, which is how a fuzzer notices.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
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

// By name, in the replay of the corpora.
using FuzzTarget = int (*)(const std::uint8_t* data, std::size_t size);
inline std::map<std::string_view, FuzzTarget>& fuzz_targets() {
  static std::map<std::string_view, FuzzTarget> targets;
  return targets;
}

inline void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace espalier

// ESPALIER_FUZZ_TARGET(name) { … } is the function of `data` and `size` that gives 0. A fuzzer holds one; the
// replay holds all of them.
#ifdef ESPALIER_FUZZ_REPLAY
#define ESPALIER_FUZZ_TARGET(name)                                    \
  static int name##_fuzz(const std::uint8_t* data, std::size_t size); \
  [[maybe_unused]] static const bool name##_is_known =                \
      espalier::fuzz_targets().emplace(#name, name##_fuzz).second;    \
  static int name##_fuzz(const std::uint8_t* data, std::size_t size)
#else
#define ESPALIER_FUZZ_TARGET(name) \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#endif
