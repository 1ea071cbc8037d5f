#pragma once

// Which operators relate the samples of a batch to each other, so that a smaller micro-batch trains something
// else. Internal to the frontend.

#include <vector>

#include "espalier/frontend/program_reader.h"

namespace espalier {

// For each node of the program: whether a step over micro-batches, whose losses are averaged, differs from
// one over the whole batch because of it. Told from sizes and arguments alone:
//
//   statistics of the batch          BatchNorm in training
//   work along the batch             a softmax, sort or slice of a dimension that grows with it
//   pairs of samples                 an output that grows with the square of the batch
//   the batch reduced away           to something that is no number: a mean for each expert
//   a number made of several samples that is not averaged: their maximum, norm or median; a mean that is
//     then squared, multiplied or brought back beside the samples; a sum that reaches the loss undivided
//
// A mean over the samples that reaches the loss through +, − and products with constants mixes nothing, nor
// does a sum that is divided by the batch on its way, nor a sort that deals rows out to experts and back
// (row_dispatch.h). A program with a fixed batch shows its statistics only.
std::vector<bool> nodes_that_mix_samples(const FlatProgram& program);

}  // namespace espalier
