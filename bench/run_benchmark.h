#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "espalier/base/check.h"

namespace espalier {

// What `main` of a benchmark does: runs it with its arguments, and says in one line what is wrong with an
// input.
inline int run_benchmark(int (*run)(const std::vector<std::string>&), int count, char** words) {
  try {
    return run({words + 1, words + count});
  } catch (const InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace espalier
