#pragma once

// What the max-load planners see of a profile: its nodes contracted to items that stand on one device, and
// the outputs that several items touch. Internal to this folder.
//
// In the order of the authors' program:
// 1. nodes of a colour are one item, forward and backward together;
// 2. an item without forward nodes gets a forward stand-in without cost: an edge between backward nodes, one
//    of which has a stand-in, is mirrored between their forward sides;
// 3. items on a cycle of forward edges become one;
// 4. an item whose forward nodes take no time (below 1e-6 on either device kind), whose forward nodes no
//    backward node reads, whose backward nodes take no time and that has one forward neighbour joins it;
//    again and again.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/frontend/published.h"
#include "espalier/planners/literal/downsets.h"

namespace espalier::literal {

struct ContractedGraph {
  struct Item {
    double cpu = 0, accelerator = 0, bytes = 0;
    bool cpu_only = false;
  };
  // An output that items hold or read; it costs a device that holds some but not all of them. Where the
  // device has the source, somebody else reads it; where it has not, it reads a foreign source.
  struct Output {
    double cost = 0;
    std::vector<std::uint32_t> items;  // at least two, ascending
  };
  std::vector<Item> items;
  std::vector<Output> outputs;
  ItemLists before;                    // over forward edges, mirrored ones too
  std::vector<std::uint32_t> order;    // DPL's: depth first, from the file's first source on
  std::vector<std::uint32_t> item_of;  // by node
};

// Throws InputError as max_load does.
ContractedGraph contract(const MsrProfile& profile);

// By node the item after step 3, numbered by their first nodes. Throws likewise.
std::vector<std::uint32_t> fused_colours(const MsrProfile& profile);

}  // namespace espalier::literal
