#pragma once

// Placeto (Addanki et al., NeurIPS'19): a policy that learns to place one graph by visiting its nodes one
// after the other.
//
//   episode   begins at the best placement so far, at first all on the first device
//             each node once, in the given order: the policy gives it a device, the engine judges
//             reward of a step: ln(step before) - ln(step after)
//   update    one at the end of an episode: up Σ (return - its mean so far at that place) · ln p + w ·
//   entropy
//
// The traversal-order study (arXiv 2201.09676) ran it with an entropy weight of 1 all along, forty episodes
// that learn and ten that evaluate, and in a copy of the code whose reward has the other sign: slower is
// better. Both are here by option. What came of it, and what that was worth: docs/traversal_orders.md.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "espalier/planners/placement/ordered.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

// How a policy sees where nodes lie (placeto_net.h).
enum class PlacetoEmbedding : std::uint8_t { kMessagePassing, kGraphSage, kPGnn };
std::string_view to_text(PlacetoEmbedding embedding);  // "message-passing", "graphsage", "p-gnn"
std::optional<PlacetoEmbedding> parse_placeto_embedding(std::string_view text);

enum class PlacetoReward : std::uint8_t {
  kFaster,
  kSlower,  // the sign of the copy that the study ran
};

// How far a training is: after an episode.
struct PlacetoPoint {
  std::uint64_t episode = 0;  // from 1
  std::uint64_t states = 0;   // so far
  Duration best = {};         // step of the best so far that fits; 0: none yet
  double entropy = 0;         // of the policy, mean over the episode's nodes with a choice: 1 is uniform
  bool evaluation = false;    // of the most probable devices, nothing is learnt of it
  friend bool operator==(const PlacetoPoint&, const PlacetoPoint&) = default;
};

struct PlacetoOptions {
  Rules rules = {.memory = Rules::Memory::kAllHeld};  // not kListed
  std::size_t most_nodes = 512;                       // larger instances are placed by clusters (clusters.h)
  PlacetoEmbedding embedding = PlacetoEmbedding::kMessagePassing;
  std::uint64_t episodes = 50;
  std::uint64_t evaluate_every =
      0;  // every so many-th episode evaluates; what it visits is no answer. 0: none
  PlacetoReward reward = PlacetoReward::kFaster;
  double discount = 1;  // of later rewards
  // Whether a step's advantage is divided by the deviation of its episode's.
  bool normalised = true;
  // Steps of Adam after an episode; from the second on probabilities move by `clip` at most (PPO).
  std::uint64_t epochs = 4;
  double clip = 0.2;
  double entropy = 0.1, last_entropy = 0;  // weight, from the first update to the last
  double learning_rate = 1e-3, last_learning_rate = 1e-4;
  double most_norm = 1.25;  // of a gradient
  // Called after each episode; may be empty.
  std::function<void(const PlacetoPoint&)> told = {};
};

// As the study ran it: entropy weight 1 and learning rate 1e-3 all along, one update an episode, every fifth
// of fifty episodes evaluates. The reward has the right sign.
PlacetoOptions literature_placeto();

// Settings by name: "placeto", "placeto-graphsage", "placeto-p-gnn", "placeto-literature", and
// "placeto-flipped", the literature's with the sign of its copy.
std::optional<PlacetoOptions> placeto_by_name(std::string_view name);

// The best placement visited that fits, or what came nearest repaired; `estimate` is the engine's step. Takes
// a state for each simulator call and for each node that stays where it is, as walks do (ordered.h); ends
// with the episodes or with the budget. What does not fit counts time · (2 + 20 · what lacks / all memory).
// The same bytes for the same seed on one machine. An episode is O(nodes · (evaluation + nodes + edges) +
// nodes³).
Placed placeto(const PlacerInput& input, const PlacetoOptions& options, Context& context);

// The same, judged by an engine of input.instance; its rules' order must not be kListed.
Placed placeto(const PlacerInput& input, const Engine& engine, const PlacetoOptions& options,
               Context& context);

// As place_in_order(): as many episodes as fit into the looks.
Placed placeto_in_order(const Graph& graph, const Engine& engine, const PlacetoOptions& options,
                        const OrderedOptions& ordered, Context& context);

}  // namespace espalier::placement
