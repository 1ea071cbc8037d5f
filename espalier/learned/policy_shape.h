#pragma once

// The sizes of GDP's net. The defaults are what learns on two cores, not the paper's, which are not known.

#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier::placement {

// Superposition: what multiplies, element by element, the input of each dense layer of the placer.
enum class Gate : std::uint8_t {
  kNone,
  kNode,   // 2σ of a layer on the node's own embedding (GDP)
  kGraph,  // 2σ of a layer on the mean embedding of the graph (GO, arXiv 2010.12438)
};
std::string_view to_text(Gate gate);  // "none", "node", "graph"
std::optional<Gate> parse_gate(std::string_view text);

// What is placed as one (coarsening.h).
enum class Coarsening : std::uint8_t {
  kNone,     // each node by itself
  kLearned,  // groups that the policy draws: a net scores the edges that nodes may keep
  kRandom,   // groups drawn as they are before anything is learnt, which stays so: the control
};
std::string_view to_text(Coarsening coarsening);  // "none", "learned", "random"
std::optional<Coarsening> parse_coarsening(std::string_view text);

struct PolicyShape {
  std::int64_t width = 64;
  std::int64_t sage_layers = 2;
  std::int64_t attention_layers = 1;
  std::int64_t heads = 4;
  std::int64_t segment = 128;    // nodes in a segment; its memory is the segment before
  std::int64_t refinements = 0;  // passes that see the probabilities of the pass before (GO)
  Gate gate = Gate::kGraph;
  bool centred = true;        // logits of a device are relative to their mean over the work
  std::int64_t spectral = 0;  // positions of a node in its graph (spectral.h) among its numbers
  // Levels of schedule priority that a second head chooses among for each node (GO, arXiv 2010.12438); 0:
  // there is none, and devices run by the order of the graph.
  std::int64_t priorities = 0;
  Coarsening coarsening = Coarsening::kNone;
  // Is told whether devices run by priorities or by the order of the graph, so that one policy answers for
  // both.
  bool told_order = false;
  friend bool operator==(const PolicyShape&, const PolicyShape&) = default;
};

}  // namespace espalier::placement
