#pragma once

// The two written forms of a Graph: lines for people and tests, JSON for files. Both parse back.
//
//   batch 2..64
//   x = input() : f32[b,16]
//   w = parameter(encoder.weight, tied=head.weight) : f32[16,16]
//   h = linear(x, w) : f32[b,16]
//   y = relu_(h) @inplace          an output that shares its first input's storage
//   loss = mean(y) : f32[]
//   return loss
//
// Line form: `outputs = target(inputs) [: types] [@attribute[=value] …]`; outputs and types are separated by
// commas. Defaults keep tests short: batch 1..1024; type f32[b] ; requires_grad derived (a floating-point
// output of an operator that reads a tensor requiring it); op_class = target with input types; the last
// line's scalar is the loss if it is called so. Operator name = first output's name. Attributes: @view
// (shares the first input's storage), @inplace (also mutates it), @mutates=t, @module=path,
// @source=file:line, @backward, @update, @colocate=n, @duplicable,
// @random, @mixes, @nograd, @class=text (quoted with "…" where it holds spaces).

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "espalier/graph/graph.h"

namespace espalier {

Graph parse_graph(std::string_view text);     // throws InputError "line 3: …"
std::string print_graph(const Graph& graph);  // parse_graph(print_graph(g)) == g

nlohmann::ordered_json graph_to_json(const Graph& graph);  // "format": "espalier.graph/1"
Graph graph_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace espalier
