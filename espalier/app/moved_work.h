#pragma once

// Which work stands elsewhere in another plan of the same graph: for people, where thousands of operators
// moved.
//
// Each line is a part of the model that goes from one place to another. A part is told as a whole where all
// of it goes the same way; one that does not is told by the modules inside it, most moved work first, as long
// as all fits into so many lines. Neighbours with numbers that follow each other are one line where all of
// both goes the same way. Of a part that goes more than four ways the one with more than half of its moved
// work has a line, and the others have one together: "8 places". What is less than a thousandth of all that
// moved takes no line from others.
//
//   encoder        all of it goes a -> b      encoder      a  b
//   decoder.0-3    all of it goes b -> a      decoder.0-3  b  a
//   decoder.4      a part goes b -> a         decoder.4    b  a
//
// Work is the time that an operator takes where it stands in a, its passes together; an operator on several
// devices counts once.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// By operator: the devices that it stands on, ascending, by name's place in `names`.
struct Standing {
  std::vector<std::string> names;
  std::vector<std::string> kinds;  // by name: devices of one kind may be renamed into each other
  std::vector<std::vector<std::uint32_t>> a, b;
};

struct MovedWorkOptions {
  std::size_t most_lines = 12;
};

struct MovedWork {
  struct Line {
    std::string module;
    std::string from, to;       // "gpu:0", on both "gpu:0, gpu:1", on "3 devices"; "3 places"
    std::size_t operators = 0;  // that go this way
    double share = 0;           // of the work of the whole graph
    Bytes parameters = {};      // each with the first operator that reads it
    friend bool operator==(const Line&, const Line&) = default;
  };
  std::vector<Line> lines;  // the largest share first, then the order of the graph
  std::size_t more = 0;     // lines that are left out: their sums
  Line rest;
  Line all;  // of everything that moved

  // Devices of one kind with other names, so that most work stays: cycles "gpu:0 <-> gpu:1" or "gpu:0 ->
  // gpu:1 -> gpu:2 -> gpu:0". Only where less than half of the moved work moves then.
  struct Renaming {
    std::string devices;
    double share = 0;  // of the work of the whole graph, that moves all the same
    friend bool operator==(const Renaming&, const Renaming&) = default;
  };
  std::optional<Renaming> renaming;
};

// `work` is by operator. O(operators · depth · log lines + devices³ of a kind with moved work); above
// kMostMatchedDevices of a kind the largest flows are matched first in place of the best matching.
inline constexpr std::size_t kMostMatchedDevices = 64;
MovedWork moved_work(const Graph& graph, const Standing& standing, const std::vector<Duration>& work,
                     const MovedWorkOptions& options = {});

}  // namespace espalier
