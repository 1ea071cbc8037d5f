#pragma once

// Operators that a device can run in several ways: implementations, of different time and memory, by name
// (Jeon, Park et al., "Collage", PACT'22, whose back ends are names here). A table has a row for each: of one
// class, kind and variant, and different in `CostRow::implementation`.
//
// Where a cell meets an operator (OperatorCosts, KindCosts) the fastest counts, at the micro-batch asked for:
// of all that the operator does there, so an operator that computes no backward is not judged by one. Of
// equally fast ones the one with fewer bytes of its own, then the first by name. In a training graph a
// forward operator and its backward choose by both together, so that they are one implementation's. So
// whoever plans, simulates or bounds sees one cell; where memory binds, a table that offers lighter ones
// alone is what planning goes on with.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/cost/cost_table.h"

namespace espalier {

bool has_implementations(const CostTable& table);  // some class, kind and variant has a name

// A lighter implementation in place of the one that counts: of all operators of a class on a kind.
struct LighterChoice {
  std::string op_class, kind;
  Variant variant;
  std::string from, to;
  std::size_t operators = 0;
  Duration longer;  // of one micro-batch, all operators together
  Bytes less;       // what they keep for backward and work in, likewise
  friend bool operator==(const LighterChoice&, const LighterChoice&) = default;
};
// From what counts at `micro_batch` to the lightest there is, one choice for each class, kind and variant
// that has a lighter one: those that cost the least time for each byte first. O(operators + rows · log rows).
std::vector<LighterChoice> lighter_choices(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                           BatchSize micro_batch);
// The table in which these classes have that implementation alone.
CostTable with_lighter(const CostTable& table, std::span<const LighterChoice> choices);

// By operator of the graph: the name that counts on this kind; empty where rows have no name or there is
// none.
std::vector<std::string> implementations_of(const Graph& graph, const DeviceKind& kind,
                                            const CostTable& table, BatchSize micro_batch,
                                            Variant variant = {});

}  // namespace espalier
