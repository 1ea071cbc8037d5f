#pragma once

// What the verbs that execute models do; espalier-runtime lists them in main.cc.

#include "espalier/cli/runtime_verbs.h"

namespace espalier::cli {

int run(Program& program, const RunFlags& flags);
int verify(Program& program, const VerifyFlags& flags);
int profile(Program& program, const ProfileFlags& flags);
int calibrate(Program& program, const CalibrateFlags& flags);
int learn(Program& program, const LearnFlags& flags);
LearnedPlanner learned(const LearnedFlags& flags);
LearnedOrdered ordered(std::string_view placer);

}  // namespace espalier::cli
