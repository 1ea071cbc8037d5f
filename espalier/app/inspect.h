#pragma once

// What is in a model, as far as planning is concerned.

#include <string>
#include <utility>
#include <vector>

#include "espalier/app/outline.h"
#include "espalier/app/planning_job.h"
#include "espalier/graph/structure.h"
#include "espalier/report/table.h"

namespace espalier {

struct ModelSummary {
  struct Kind {        // operators of one kind
    std::string name;  // "linear"
    std::size_t count = 0;
    double forward_flops = 0;
    Duration time;     // forward and backward
    double share = 0;  // of the time of all
  };
  struct Waits {  // of the structure, where it is not series and parallel parts
    std::size_t count = 0;
    double growth = 0;  // of the longest path by work
  };

  std::string name;
  BatchRange batch;
  bool training_mode = true;
  std::string loss;    // name; empty: none
  BatchSize at;        // the micro-batch that the figures below are for
  std::string device;  // kind that the times are for

  std::size_t operators = 0;
  std::size_t tensors = 0;
  std::size_t duplicable = 0;
  std::vector<Kind> kinds;  // by time, largest first

  bool opaque = false;  // a profile: it knows bytes and times, no elements and no FLOP
  std::int64_t parameter_elements = 0;
  Bytes parameters;  // trainable, ties once
  std::int64_t frozen_elements = 0;
  Bytes frozen;  // parameters that are not trained
  Bytes buffers;
  std::vector<std::vector<std::string>> ties;  // names of parameters that share one storage

  double forward_flops = 0;
  double backward_flops = 0;
  Duration forward;  // of all operators one after another
  Duration backward;
  Duration critical_path;      // forward and backward of the longest dependent path
  double parallelism = 1;      // all / critical path: how much faster with endless devices, one micro-batch
  Bytes saved;                 // kept for backward, private bytes apart from tensors included
  std::string largest_tensor;  // "logits f32[8,1000], 31.3 KiB, model.py:40"

  Outline outline;      // its parts, by module
  Structure structure;  // the whole tree
  Waits waits;
  Bytes carried;  // the most that skips carry over one part of the outermost series, at this micro-batch
  std::vector<std::string>
      unknown;  // operators that the operator table does not know: "custom.op ×3, model.py:4"
  std::vector<std::string> foreign;  // operators that libtorch does not have: a program must register them
  std::vector<std::string> mixing;   // operators whose result for a sample depends on the others
  std::vector<std::string> random;   // operators that draw random numbers
};

ModelSummary inspect(const PlanningJob& job);

Table kind_table(const ModelSummary& summary,
                 std::size_t most);  // at most so many rows, the last for the rest

// "linear" of "aten.linear.default".
std::string short_target(const std::string& target);

// "1.2 GFLOP".
std::string flop_text(double flops);

}  // namespace espalier
