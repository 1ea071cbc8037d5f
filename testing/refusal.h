#pragma once

// For tests of bad input. gmock's ThrowsMessage is instantiated anew for every lambda, which makes it the
// larger part of a test's compile time; this leaves a std::string to be matched.

#include <string>

#include "espalier/base/check.h"

namespace espalier::testing {

// What the error says that `action` throws, or that there was none.
template <class Error = InputError, class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was refused)";
}

}  // namespace espalier::testing
