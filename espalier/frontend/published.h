#pragma once

// The published profiles as values, figure for figure as they stand in their files: nothing is rounded,
// repaired or converted. Importers make graphs of them (imported.h); the literature's own planners
// (planners/literal/) take them as they are.
//
// Invariants of what the readers return: ids are unique, edges name nodes by their place in `nodes`, and
// every figure is finite and not negative. Nodes stand in the order of the file. Cycles are not looked for.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// An input of msr-fiddle/dnn-partitioning (Tarnawski et al., NeurIPS 2020).
struct MsrProfile {
  struct Node {
    std::int64_t id = 0;
    std::string name = {};
    bool on_accelerator = true;          // supportedOnFpga
    bool backward = false;               // isBackwardNode
    double cpu = 0;                      // cpuLatency, ms
    double accelerator = 0;              // fpgaLatency, ms
    double bytes = 0;                    // size: all that it occupies on its device
    std::optional<std::int64_t> colour;  // colorClass: one device for all that share it
  };
  struct Edge {
    std::size_t from = 0, to = 0;
    double cost = 0;   // of the source's output, accelerator ↔ host memory; in the file's unit
    double bytes = 0;  // informative
  };
  std::string file;
  std::int64_t accelerators = 0, cpus = 0;
  double memory = 0;  // bytes of one accelerator
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

// A placement of an MSR profile's nodes, as people or planners wrote it. Devices may be empty, and nodes
// missing: they stand where others of their colour do.
struct MsrPlacement {
  struct Device {
    bool accelerator = true;
    std::vector<std::int64_t> nodes = {};  // ids
  };
  std::string file;
  std::vector<Device> devices;  // accelerators, then CPUs
};

// An input of msr-fiddle/piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021).
struct PiperProfile {
  struct PeerBytes {
    std::string peer;  // id of the other node, as the file writes it
    double bytes = 0;
  };
  // One way to run a layer.
  struct Way {
    std::uint32_t degree = 1;  // of tensor parallelism
    bool recompute = false;
    double time = 0;        // forward and backward of a micro-batch, in the file's unit
    double parameters = 0;  // bytes per device
    double memory_per_micro_batch = 0, memory_fixed = 0;  // A·y + B bytes with y micro-batches in flight
    std::vector<PeerBytes> sync_forward = {}, sync_backward = {};  // by predecessor, by successor
  };
  struct Node {
    std::int64_t id = 0;
    std::string name = {};
    std::vector<Way> ways = {};  // by degree, without recomputation first; each once
  };
  struct Edge {
    std::size_t from = 0, to = 0;
    double bytes = 0;
  };
  std::string file;
  std::int64_t devices = 1;
  double memory = 0;               // bytes per device
  double bandwidth = 0;            // bytes per second out of a device
  std::int64_t micro_batches = 1;  // mbsInBatch
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

// A profile of PipeDream, graph.txt (Narayanan et al., SOSP 2019).
struct PipedreamProfile {
  struct Node {
    std::string id = {};
    std::string description = {};
    double forward = 0, backward = 0;  // ms per mini-batch
    double activation = 0;             // bytes of its output; a list is added up
    double parameters = 0;             // bytes
    bool several_outputs = false;      // the activation is written as a list
    std::optional<std::int64_t> stage = {};
  };
  struct Edge {
    std::size_t from = 0, to = 0;
  };
  std::string file;
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

enum class PublishedKind : std::uint8_t { kMsr, kPiper, kPipedream };

// What a text seems to be, by the words that only such files have; nothing for anything else. O(length).
std::optional<PublishedKind> published_kind(std::string_view text);

// `file` is named in errors. Each throws InputError saying where, what, and what would be right.
MsrProfile read_msr(std::string_view text, const std::string& file);
MsrPlacement read_msr_placement(std::string_view text, const std::string& file);
PiperProfile read_piper(std::string_view text, const std::string& file);
PipedreamProfile read_pipedream(std::string_view text, const std::string& file);

}  // namespace espalier
