#pragma once

// What the verbs that execute models do; espalier-runtime lists them in main.cc.

#include <algorithm>

#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

int run(Program& program, const RunFlags& flags);
int verify(Program& program, const VerifyFlags& flags);
int profile(Program& program, const ProfileFlags& flags);
int calibrate(Program& program, const CalibrateFlags& flags);
inline constexpr std::uint64_t kUsualGraphs = 400;  // to learn from
// And how many that it never saw a guide is asked about: a sixteenth of these.
inline std::size_t asked_beside(std::size_t graphs) {
  return std::clamp<std::size_t>(graphs / 16, 1, 25);
}
int learn(Program& program, const LearnFlags& flags);
int learn_guide(Program& program, const LearnFlags& flags);  // of `learn`
int learn_relocation(Program& program, const LearnFlags& flags);
int learn_proposals(Program& program, const LearnFlags& flags);
void expect_output(const LearnFlags& flags);  // likewise: throws InputError
LearnedPlanner learned(std::span<const std::string> planners, const LearnedFlags& flags);
LearnedOrdered ordered(std::string_view placer);

}  // namespace espalier::cli
