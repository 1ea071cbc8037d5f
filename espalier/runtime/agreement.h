#pragma once

// What the workers of a run must have alike before they train together, told in words and compared. Needs no
// libtorch; handshake.h carries it from worker to worker.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/plan_file.h"
#include "espalier/runtime/runtime.h"

namespace espalier {

// Messages between workers have one form per number: whoever changes a form raises it.
constexpr int kProtocol = 1;

// "plan": "fingerprint 0123456789abcdef". Equal facts are equal texts.
struct Fact {
  std::string what;
  std::string value;
  friend bool operator==(const Fact&, const Fact&) = default;
};

// How a worker introduces itself.
struct Introduction {
  std::string worker;         // "worker 1 (cpu:1)"
  std::uint32_t workers = 1;  // that it was started with
  std::string host;           // name, for people
  std::string clock;          // workers with the same text read the same clock (clock_offset.h)
  std::vector<Fact> facts;
  friend bool operator==(const Introduction&, const Introduction&) = default;
};

// What a worker knows of another.
struct Acquaintance {
  std::string worker;  // "worker 1 (cpu:1)"
  std::string host;
  std::string clock;
  friend bool operator==(const Acquaintance&, const Acquaintance&) = default;
};

// JSON. Reading throws InputError naming the place; a text of more than a mebibyte is refused.
std::string print_introduction(const Introduction& introduction);
Introduction parse_introduction(std::string_view text, const std::string& where);

// "worker 2 (cpu:2) differs from worker 0 (cpu:0) in its plan (fingerprint 1f…, not 2e…) and in its steps
// (20, not 10)"; empty if the workers agree.
std::string disagreement(const Introduction& first, const Introduction& other);

// What workers of each verb must have alike: the program, its protocol, libtorch's version and the verb;
// plan, model and data; every option that decides what is computed or what the workers tell each other.
std::vector<Fact> run_facts(const PlanFile& plan, const std::string& model, const RunOptions& options);
std::vector<Fact> paced_facts(const PlanFile& plan, const PacedOptions& options);
std::vector<Fact> verify_facts(const PlanFile& plan, const std::string& model, const VerifyOptions& options);
std::vector<Fact> profile_facts(const std::string& model, const ProfileOptions& options);

// A plan by all that decides what is computed, when and where: neither names of files nor notes nor who made
// it.
Fact plan_fact(const PlanFile& plan);

// A file by its size and parts of its bytes, not by its name: its beginning, its end (where a .pt2 has the
// checksums of its tensors) and samples in between. "none" for an empty path. Throws InputError if it cannot
// be read.
Fact file_fact(const std::string& what, const std::string& path);

}  // namespace espalier
