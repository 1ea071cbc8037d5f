#pragma once

// A placement as people write it: patterns of modules or operators, and where they go; of several that match,
// the first counts.
//
//   {"encoder.*": "gpu:0", "*": "gpu:1"}        as JSON
//   encoder.* = gpu:0                           as lines; '#' begins a comment
//   * = gpu:1

#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/plan.h"

namespace espalier {

// A pattern matches an operator by its module path or its name; '*' stands for any characters.
struct PlacementRule {
  std::string pattern;
  DeviceId device;
  friend bool operator==(const PlacementRule&, const PlacementRule&) = default;
};

// Either form. Throws InputError "<where>: …" where it cannot be read, names a device that the cluster lacks,
// or gives one pattern twice.
std::vector<PlacementRule> parse_placement_rules(std::string_view text, const std::string& where,
                                                 const Cluster& cluster);
std::string print_placement_rules(const std::vector<PlacementRule>& rules, const Cluster& cluster);  // lines

struct PlacedByRules {
  Placement placement;
  std::vector<std::string> notes;  // for people: which operators went elsewhere than their own rule says
};

// A colocation group goes where the first rule that matches any of its operators says. A duplicable operator
// without a rule goes to its first reader's device; wherever it is put, copies stand beside all readers.
// Throws InputError "<where>: …" naming a rule that matches nothing, or the first operator that none matches.
// O(operators · rules).
PlacedByRules place_by_rules(const Graph& graph, const Cluster& cluster,
                             const std::vector<PlacementRule>& rules, const std::string& where);

// A placement file of any form: espalier.placement/1, its text form (text.h), rules as above, or a plan file
// that holds a placement, perhaps edited by hand. Throws InputError as its reader does, or where the
// placement breaks a rule of check_placement.
PlacedByRules parse_placement_file(std::string_view text, const std::string& where, const Graph& graph,
                                   const Cluster& cluster);

}  // namespace espalier
