"""Writes espalier/frontend/libtorch_operators.cc: the aten operators of the installed libtorch, by name.

    python python/list_operators.py
"""

import textwrap
from pathlib import Path

import torch

TARGET = Path(__file__).resolve().parents[1] / "espalier" / "frontend" / "libtorch_operators.cc"

TEMPLATE = '''#include "espalier/frontend/libtorch_operators.h"

#include <algorithm>
#include <array>
#include <vector>

namespace espalier {
namespace {

// Written by python/list_operators.py from torch @VERSION@.
constexpr std::string_view kAten = R"(
@NAMES@
)";

constexpr std::array<std::string_view, 6> kOtherNamespaces = {"_quantized", "mkl",       "mkldnn",
                                                              "onednn",     "quantized", "sparse"};

std::vector<std::string_view> split(std::string_view text) {
  constexpr std::string_view kSpaces = " \\n";
  std::vector<std::string_view> names;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return names;
    const std::size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

}  // namespace

bool in_libtorch(std::string_view target) {
  static const std::vector<std::string_view> kNames = split(kAten);  // sorted by who wrote them
  const std::size_t colons = target.find("::");
  if (colons == std::string_view::npos) return false;
  const std::string_view space = target.substr(0, colons);
  if (space == "aten") return std::binary_search(kNames.begin(), kNames.end(), target.substr(colons + 2));
  return std::find(kOtherNamespaces.begin(), kOtherNamespaces.end(), space) != kOtherNamespaces.end();
}

}  // namespace espalier
'''


def names() -> list[str]:
    """The names without overloads of all aten operators that C++ registers."""
    found = set()
    for operator in torch._C._dispatch_get_all_op_names():
        name = operator.split(".")[0].removeprefix("aten::")
        if not operator.startswith("aten::") or name in found:
            continue
        dump = torch._C._dispatch_dump(operator).splitlines()
        if not any(line.startswith("debug:") and ".py:" in line for line in dump):
            found.add(name)
    return sorted(found)


def text() -> str:
    version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    filled = textwrap.fill(" ".join(names()), 108, break_long_words=False, break_on_hyphens=False)
    return TEMPLATE.replace("@VERSION@", version).replace("@NAMES@", filled)


if __name__ == "__main__":
    TARGET.write_text(text())
