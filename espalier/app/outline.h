#pragma once

// A Structure as people read it: which modules follow each other and which stand side by side.

#include <span>
#include <string>
#include <vector>

#include "espalier/graph/structure.h"

namespace espalier {

// Sections follow one another; the branches of one stand side by side. A branch may have sections itself.
struct Outline {
  struct Branch;
  struct Section {
    std::vector<Branch> branches;
    std::size_t equal_steps = 0;  // of how many equal runs of parts most of it consists; 0: of none
    friend bool operator==(const Section&, const Section&) = default;
  };
  struct Branch {
    std::string name;  // by part_names, among those of the same level
    double share = 0;  // of the time of all
    std::size_t operators = 0;
    std::vector<Section> sections = {};  // where branches stand side by side inside
    friend bool operator==(const Branch&, const Branch&) = default;
  };
  // Branches inside a numbered layer, such as the projections of an attention: no line of their own.
  struct Inside {
    std::string branches;  // "query | key | value"
    std::size_t count = 0;
    friend bool operator==(const Inside&, const Inside&) = default;
  };
  std::vector<Section> sections;
  std::vector<Inside> inside;  // most work first
  friend bool operator==(const Outline&, const Outline&) = default;
};

// `times`: of each operator. Branches with less than a hundredth of the time are left out.
Outline outline(const Structure& structure, const Graph& graph, std::span<const Duration> times);

// "image 32 % | sequence 30 % | numbers 29 %", a line for each section, what is inside a branch indented.
std::string to_text(const Outline& outline);

}  // namespace espalier
