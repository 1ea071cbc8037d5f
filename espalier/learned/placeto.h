#pragma once

// Placeto (Addanki et al., NeurIPS'19): a policy that learns to place one graph by visiting its nodes one
// after the other. It is the uniform walk of ordered.h with a policy that learns in the place of one that
// does not: the same episodes, the same looks.
//
//   episode   begins at the best placement so far, at first with all on the first device; visits each node
//             once, in the given order; the policy gives it a device, the engine judges what came of it
//   reward    of a step: ln(step time before) - ln(step time after)
//   update    one at the end of an episode (REINFORCE, Williams, Mach. Learn. 1992), up
//
//             Σ (return - mean return of earlier episodes at that place) · ln p + weight · entropy of p
//
// The traversal-order study (arXiv 2201.09676) ran it with an entropy weight of 1 all along, and a public
// copy of its code rewards with the other sign: slower is better. Both are here by name. What came of either:
// docs/traversal_orders.md.
//
// Deviations: rewards are differences of logarithms, so that no graph needs a scale of its own; the policy
// begins uniform (placeto_net.h); what does not fit costs its time · (2 + 20 · what lacks / all memory);
// instances of many units are placed by clusters (clusters.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "espalier/planners/placement/ordered.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// How a policy sees where nodes lie (placeto_net.h).
enum class PlacetoEmbedding : std::uint8_t { kMessagePassing, kGraphSage, kPGnn };
std::string_view to_text(PlacetoEmbedding embedding);  // "message-passing", "graphsage", "p-gnn"
std::optional<PlacetoEmbedding> parse_placeto_embedding(std::string_view text);

enum class PlacetoReward : std::uint8_t { kFaster, kSlower };

// How far a training is, after an episode.
struct PlacetoPoint {
  std::uint64_t episode = 0;  // from 1
  std::uint64_t states = 0;   // taken so far
  Duration best = {};         // step of the best so far that fits; 0: none yet
  // Of the policy over that of a uniform one on the devices that a node may stand on, mean over the episode's
  // steps that have a choice: 1 is uniform.
  double entropy = 1;
  double gain = 0;  // ln(step time at the episode's beginning) - ln(that at its end)
  bool evaluation = false;
  friend bool operator==(const PlacetoPoint&, const PlacetoPoint&) = default;
};

struct PlacetoOptions {
  Rules rules = {.memory = Rules::Memory::kAllHeld};  // not kListed
  std::size_t most_nodes = 512;                       // instances of more units are placed by clusters
  PlacetoEmbedding embedding = PlacetoEmbedding::kMessagePassing;
  std::size_t rounds = 8;       // of message passing
  std::uint64_t episodes = 50;  // 0: as many as the budget pays for
  // Every so many-th episode takes the most probable devices; nothing is learnt of it, and what it visits is
  // no answer. 0: none.
  std::uint64_t evaluate_every = 0;
  PlacetoReward reward = PlacetoReward::kFaster;
  double discount = 0;  // of a later step's reward in a return, by step
  // From the first update to the last: weights of the entropy in even steps, learning rates in even ratios.
  double entropy = 0.001, last_entropy = 0;
  double learning_rate = 3e-2, last_learning_rate = 3e-3;
  double most_norm = 1.25;                             // of a gradient
  std::function<void(const PlacetoPoint&)> told = {};  // called after each episode; may be empty
};

// As the study ran it: entropy weight 1 and learning rate 1e-3 all along, discount 1; every fifth of fifty
// episodes evaluates. The reward has the right sign.
PlacetoOptions literature_placeto();

// Settings by name: "placeto", "placeto-graphsage", "placeto-p-gnn", "placeto-literature", and
// "placeto-flipped", the literature's with the sign of the copy.
std::optional<PlacetoOptions> placeto_by_name(std::string_view name);

// The best placement visited that fits, or what came nearest, repaired; `estimate` is the engine's step.
// Takes a state for the first placement, for each step, whether the node moves or not, and for going back
// before each further episode; ends with the episodes or with the budget, and learns from an episode that the
// budget cut off. The same bytes for the same seed on one machine, whatever the threads. A step is
// O(evaluation + rounds · (nodes + edges)), once to decide and thrice to learn; O(nodes²) memory.
Placed placeto(const PlacerInput& input, const PlacetoOptions& options, Context& context);

// As place_in_order() of ordered.h, judged by that engine: as many episodes as the looks pay for.
Placed placeto_in_order(const Graph& graph, const Engine& engine, const PlacetoOptions& options,
                        const OrderedOptions& ordered, Context& context);

}  // namespace espalier::placement
