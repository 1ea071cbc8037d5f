#pragma once

// The modules of a graph, and what a name that somebody types means in it.
//
// A module holds the operators of its path and of all paths below it: `h.0` holds `h.0.attn.c_proj`. An
// operator without a module path stands under its own name, cut at '.' and '/': "/layer1/conv/Conv" is in
// "/layer1/conv" and "/layer1". A name is
//   h.0             a module with all that is inside, or an operator
//   h.*, h.[0-5]    a pattern (matches_pattern of base/spelling.h): all modules and operators that match.
//                   `h.[0-5].*` means the same as `h.[0-5]`
//   h.0-5           the same as h.[0-5]
// Names may leave out what stands before them in the paths if it is the same everywhere: `h.0-5` means
// `transformer.h.[0-5]` where nothing else ends like that.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

struct Module {
  std::string path;                     // "transformer.h.0"
  std::optional<std::uint32_t> inside;  // the module around it, by index
  std::vector<std::uint32_t> modules;   // directly in it, by first operator
  std::vector<OperatorId> own;          // directly in it, ascending
};

class ModuleNames {
 public:
  // Keeps a reference to the graph. O(operators · length of their paths).
  explicit ModuleNames(const Graph& graph);

  // Those around come before those inside.
  std::span<const Module> modules() const { return modules_; }
  std::span<const std::uint32_t> outermost() const { return outermost_; }
  std::span<const OperatorId> without_module() const { return without_; }

  // All operators in a module, ascending. O(their number · log).
  std::vector<OperatorId> operators_of(std::uint32_t module) const;

  // The operators that a name means, ascending. Throws InputError with one line that begins with the name in
  // quotes: its ranges are wrong, it means nothing (with the nearest name), or what was left out could be
  // several things. O(modules · length of a path).
  std::vector<OperatorId> find(std::string_view name) const;

 private:
  [[noreturn]] void fail_nothing(std::string_view name) const;

  const Graph& graph_;
  std::vector<Module> modules_;
  std::vector<std::uint32_t> outermost_;
  std::vector<OperatorId> without_;
};

// "h.0-5" as "h.[0-5]": each part between dots that is two numbers with '-' between.
std::string with_ranges(std::string_view name);

}  // namespace espalier
