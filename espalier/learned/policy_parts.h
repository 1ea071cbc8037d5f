#pragma once

// What a policy is made of. Includes libtorch; learned/ only.

#include <deque>
#include <optional>

#include "espalier/learned/net.h"
#include "espalier/learned/policy.h"
#include "espalier/learned/weights.h"

namespace espalier::placement {

// Logits, with gradients.
struct HeadLogits {
  at::Tensor devices;  // [nodes, devices]
  at::Tensor levels;   // [nodes, priorities]; undefined where the policy has no such head
  at::Tensor joins;    // [nodes, kJoinEntries]: of coarsening, the same
};

struct Policy::Parts {
  std::optional<Net> net;  // none: a table alone
  std::string device_name = "cpu";
  // Whether each input that is asked for has a table of its own that is added to what the net says.
  bool with_tables = false;

  // What is needed of an input is made at the first call and kept while the input lives on: forget() it
  // before it dies.
  HeadLogits heads(const PolicyInput& input);
  at::Tensor logits(const PolicyInput& input);  // of devices
  // Whom nodes may join; null where the policy does not coarsen. Valid until forget().
  const JoinInput* join_input(const PolicyInput& input);
  // [nodes, devices]: probabilities; of a policy that coarsens those of the group of each node's most
  // probable choices.
  at::Tensor most_probable_rows(const PolicyInput& input);
  // [nodes]: how much a node's error counts where a target is imitated; they add up to 1.
  at::Tensor weight_of(const PolicyInput& input);
  void forget(const PolicyInput& input);
  NamedTensors weights() const;  // a table's: of all inputs it was asked for

 private:
  struct Entry {
    const PolicyInput* of;
    NetInput input;
    at::Tensor table, level_table, join_table;  // zeros at first; undefined where there is none
  };
  at::Tensor device_logits(const Entry& known, const at::Tensor& of_net) const;
  Entry& entry(const PolicyInput& input);
  std::deque<Entry> entries_;  // in the order of first calls
};

}  // namespace espalier::placement
