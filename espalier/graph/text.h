#pragma once

// Lines of a Graph, for people and tests; they parse back. Files hold the JSON form (graph/json.h).
//
//   batch 2..64
//   x = input() : f32[b,16]
//   w = parameter(encoder.weight, tied=head.weight) : f32[16,16]
//   h = linear(x, w) : f32[b,16]
//   y = relu_(h) @inplace          an output that shares its first input's storage
//   loss = mean(y) : f32[]
//   return loss
//
// Line form: `outputs = target(inputs) [: types] [@attribute[=value] …]`; outputs, types and values that are
// lists are separated by commas. Words with blanks or punctuation stand in "…". Lines beginning with # are
// comments. Further lines: `graph NAME`, `mode eval`, `loss NAME` and `no loss` (where the default below is
// not meant), and `parameter(name) : f32[3]` alone for a parameter that no operator reads. An operator
// without outputs is a line without `outputs =` and needs @name.
//
// Tensors that nobody produces: input(), constant(), parameter(name[, tied=name …][, frozen]),
// buffer(name[, tied=name …][, nonpersistent]); a name that was there before means the same parameter.
//
// Defaults keep tests short: batch 1..1024; type f32[b], of parameters and buffers f32[1], of a tensor called
// loss f32[], of views and in-place results their first input's; requires_grad derived (a floating-point
// output of a forward operator that reads a tensor requiring it; trainable parameters; nothing in a graph
// with @backward or @update); op_class = default_op_class; the outputs are what nobody reads; the loss is the
// output called so if it is one floating-point number; colocation as with_colocation says. Operator name =
// first output's name.
//
// Attributes: @view (all outputs share the first input's storage), @inplace (also mutates it),
// @shares=out:other (out has the storage of other), @mutates=t,u, @name=text, @module=path,
// @source=file:line, @backward, @update, @colocate=n, @duplicable, @random, @mixes, @unknown, @grad[=t,u],
// @nograd[=t,u], @class=text, @gradient_of=out:other (out is a gradient of other; of constants, too).

#include <string>
#include <string_view>

#include "espalier/graph/graph.h"

namespace espalier {

Graph parse_graph(std::string_view text);     // throws InputError "line 3: …"
std::string print_graph(const Graph& graph);  // parse_graph(print_graph(g)) == g

}  // namespace espalier
