#pragma once

// Placements that a policy's answer consists of. Nodes that are drawn one by one spoil what only makes sense
// as a whole: a node of a layer on another device costs two messages. So what is placed differs together.
//
//   of eight samples
//   2  single nodes, from rows that are sharpened (raised to a power) and lean towards some devices (a factor
//      for each, drawn log-normally), so that a cut between layers moves as one
//   3  whole layers, from the same rows averaged over a layer
//   3  the most probable split between layers: one run of layers for each device, none with much more than it
//      must have; the room of devices varies
//
// A layer is what a person cuts between (layers_of): its units may belong to clusters of other layers too.

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/learned/placement_task.h"

namespace espalier::placement {

// `probability`: nodes × devices, rows add up to 1. The same for the same seed.
// O(count · (units + layers²) · devices).
std::vector<Assignment> varied_samples(const PlacementTask& task, std::span<const float> probability,
                                       std::size_t count, std::uint64_t seed);

// A policy's answer by layers; all are layers × devices.
struct LayerRows {
  std::size_t layers = 0, devices = 0;
  std::vector<double> work;   // its part of all work, longer where the device is slower
  std::vector<double> bytes;  // residents and values, over the device's memory
  std::vector<double> value;  // Σ over its units: work · ln probability
};

struct SplitChoice {
  double of_work = 1;              // 0 to 1: this part of a share is of work, the rest of bytes
  double looseness = 1;            // at least 1
  std::vector<double> room = {};   // by device: its share counts as divided by that; empty: 1 each
  std::vector<std::size_t> order;  // devices in the order of the layers that they take
};

// Of all splits in which no device has more than `looseness` times the share that the fullest has in the most
// even split, the one of the largest value. The device of each layer. O(layers² · devices).
std::vector<std::size_t> most_probable_split(const LayerRows& rows, const SplitChoice& choice);

}  // namespace espalier::placement
