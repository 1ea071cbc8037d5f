#pragma once

// The structure of a graph: its operators as a tree of series and parallel parts, decided by work.
//
//   towers and a head     series
//                           parallel
//                             vision   (itself a series of its layers)
//                             text
//                           head
//
// Operators that weigh next to nothing (views, the exponential of a temperature) decide nothing: they are
// carried by a part that they may stand in. So are operators that do not lead to the loss. Operators that
// must stand together are one leaf, with all that lies between them. Duplicable operators are not in the
// tree: each stage computes its own copy.
//
// Every operator of a child of a series may run before those of the next; nothing leads from one child of a
// parallel part to another. Any part and any run of children of a series is therefore a legal stage, and
// `operators`, from left to right, is a legal order.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/graph/graph.h"
#include "espalier/graph/series_parallel.h"

namespace espalier {

using PartId = Id<struct PartTag>;  // a part of a Structure

struct Structure {
  struct Part {
    PartKind kind = PartKind::kLeaf;
    std::optional<PartId> parent = {};
    std::uint32_t first_child = 0, end_child = 0;        // in `children`
    std::uint32_t first_operator = 0, end_operator = 0;  // in `operators`
    Weight work = {};                                    // of all its operators
    Weight length = {};  // its heaviest path through the tree, without what is carried
    std::uint64_t hash = 0;
    PartId like = {};  // the first part that is the same computation: itself, if no earlier one is
    friend bool operator==(const Part&, const Part&) = default;
  };
  // At the child at `position` of a series: its operators `to` wait for the operators `from` of what stands
  // before, and `pairs` of these waits the graph does not ask for.
  struct Wait {
    PartId series;
    std::uint32_t position = 0;
    std::vector<OperatorId> from, to;
    std::uint64_t pairs = 0;
    friend bool operator==(const Wait&, const Wait&) = default;
  };
  // A tensor that is produced in one child of a series and last read there in one that is not the next: a
  // residual connection, the memory of a decoder. It is carried over the children between.
  struct Skip {
    PartId series;
    std::uint32_t from = 0, to = 0;  // positions of the children
    TensorId tensor;
    friend bool operator==(const Skip&, const Skip&) = default;
  };

  std::vector<Part> parts;            // in preorder; the root is the first
  std::vector<PartId> children;       // of all parts, each part's in a row
  std::vector<OperatorId> operators;  // all but duplicable ones; ascending within a leaf
  std::vector<char> carried;          // by place in `operators`: 1 if it decides nothing
  std::vector<Wait> waits;            // by series, then position
  std::vector<Skip> skips;            // by series, tensor
  Weight longest_path;                // of the graph, without what is carried

  bool empty() const { return parts.empty(); }  // a graph without operators, or of duplicable ones only
  const Part& part(PartId id) const { return parts[id.index()]; }
  std::span<const PartId> children_of(PartId id) const {
    return std::span(children).subspan(part(id).first_child, part(id).end_child - part(id).first_child);
  }
  std::span<const OperatorId> operators_of(PartId id) const {
    return std::span(operators).subspan(part(id).first_operator,
                                        part(id).end_operator - part(id).first_operator);
  }
  // What the waits cost: how much longer the heaviest path is than the graph's.
  Weight growth() const { return empty() ? Weight() : parts.front().length - longest_path; }

  friend bool operator==(const Structure&, const Structure&) = default;
};

struct StructureOptions {
  SeriesParallelOptions form = {};
  // The lightest operators are carried as long as they weigh no more than this together, of a thousand parts
  // of all. Operators of one weight are all carried or none.
  std::uint32_t carried_per_mille = 10;
};

// `weights`: the work of each operator, not negative, their sum below 2^62; work_weights of cost/work.h is
// what to use. Where all weigh nothing, each counts the same. O((n + e) · log n) for each level of nesting.
Structure make_structure(const Graph& graph, std::span<const Weight> weights,
                         const StructureOptions& options = {});

// Bytes that skips carry over each child of a series. O(children + skips).
std::vector<Bytes> carried_over(const Structure& structure, const Graph& graph, PartId series,
                                BatchSize batch);

// The leaf of each operator; none for a duplicable one.
std::vector<std::optional<PartId>> leaf_of_operators(const Structure& structure, const Graph& graph);

// "series(a, parallel(series(b1, b2), c), d+view)": operators of a leaf are joined by '+', and what is
// carried follows what carries it.
std::string to_text(const Structure& structure, const Graph& graph);

// Every broken promise, one line each; empty if there is none. Two equal parts are the same computation if
// operator for operator their classes, weights and tensors agree, wherever these come from; check_structure
// compares them too. It shares no code with make_structure. O((n + e) · depth).
std::vector<std::string> check_structure(const Structure& structure, const Graph& graph,
                                         std::span<const Weight> weights);

}  // namespace espalier
