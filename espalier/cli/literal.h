#pragma once

// What the parts of `espalier literal` share: its options and its refusals.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "espalier/base/json.h"
#include "espalier/cli/verbs.h"
#include "espalier/frontend/published.h"

namespace espalier::cli {

struct LiteralFlags {
  std::string planner, file;
  std::vector<std::int64_t> devices;
  std::int64_t cpus = 0, micro_batches = 0;
  std::string memory, placement, objective;
  std::vector<double> bandwidth;
  std::vector<std::string> without;
  bool streaming = false;
  const CLI::App* verb = nullptr;

  bool given(const std::string& option) const { return verb->count(option) > 0; }
};

// The file's text, if it is of the kind that the planner reads.
std::string read_published(const LiteralFlags& flags, PublishedKind expected);
// Throws InputError where one of them is given.
void refuse_options(const LiteralFlags& flags, std::initializer_list<const char*> options);
// A result that its checker refuses is a mistake of ours.
void refuse_violations(const std::vector<std::string>& violations);

std::string figure(double value);  // six digits
std::vector<std::string> names_of(const PipedreamProfile& profile, const std::vector<std::size_t>& nodes);
// All of them, or the first three and the last.
std::string short_names(const std::vector<std::string>& names);
int no_answer(Program& program, const LiteralFlags& flags, const std::string& why, Json json);

// Planners of plain sequences (literal_sequences.cc).
int literal_torchgpipe(Program& program, const LiteralFlags& flags);
int literal_dapple(Program& program, const LiteralFlags& flags);
int literal_autopipe(Program& program, const LiteralFlags& flags);
int literal_bapipe(Program& program, const LiteralFlags& flags);

}  // namespace espalier::cli
