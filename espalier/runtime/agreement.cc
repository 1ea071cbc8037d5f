#include "espalier/runtime/agreement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <torch/version.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/base/json.h"
#include "espalier/base/version.h"
#include "espalier/runtime/checkpoint_folder.h"

namespace espalier {
namespace {

constexpr std::string_view kIntroductionFormat = "espalier.introduction/1";
constexpr std::size_t kLongestIntroduction = std::size_t{1} << 20;

// Parts of a file, hashed.
class FileSampler {
 public:
  explicit FileSampler(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (file_ < 0 || ::fstat(file_, &status) != 0) fail();
    size_ = static_cast<std::uint64_t>(status.st_size);
    hash_.add(size_);
  }
  FileSampler(const FileSampler&) = delete;
  FileSampler& operator=(const FileSampler&) = delete;
  ~FileSampler() {
    if (file_ >= 0) ::close(file_);
  }

  std::uint64_t size() const { return size_; }
  std::string hex() const { return hash_.hex(); }

  // As much of these bytes as there is.
  void add(std::uint64_t offset, std::uint64_t length) {
    std::string bytes(std::min(length, size_ - std::min(offset, size_)), '\0');
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n =
          ::pread(file_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail();
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    hash_.add(bytes);
  }

 private:
  [[noreturn]] void fail() const { throw InputError(path_ + ": cannot read: " + std::strerror(errno)); }

  std::string path_;
  int file_;
  std::uint64_t size_ = 0;
  Fingerprint hash_;
};

std::vector<Fact> program_facts(const std::string& verb) {
  return {{"program", "espalier " + std::string(kVersion)},
          {"protocol", std::to_string(kProtocol)},
          {"libtorch", TORCH_VERSION},
          {"verb", verb}};
}

void add_plan(std::vector<Fact>& facts, const PlanFile& plan, const std::string& model) {
  facts.push_back(plan_fact(plan));
  facts.push_back({"seed", std::to_string(plan.seed)});
  facts.push_back(file_fact("model", model));
}

}  // namespace

std::string print_introduction(const Introduction& introduction) {
  Json json = Json::object();
  json["format"] = kIntroductionFormat;
  json["worker"] = introduction.worker;
  json["workers"] = introduction.workers;
  json["host"] = introduction.host;
  json["clock"] = introduction.clock;
  json["facts"] = Json::array();
  for (const Fact& fact : introduction.facts) json["facts"].push_back({fact.what, fact.value});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Introduction parse_introduction(std::string_view text, const std::string& where) {
  if (text.size() > kLongestIntroduction) {
    throw InputError(where + ": has " + std::to_string(text.size()) + " bytes; expected " +
                     std::to_string(kLongestIntroduction) + " at most");
  }
  const Json json = parse_json(text, where);
  const JsonCursor root(json, where);
  root.expect_format(kIntroductionFormat);
  root.only({"format", "worker", "workers", "host", "clock", "facts"});
  Introduction result;
  result.worker = root.at("worker").string();
  result.workers = static_cast<std::uint32_t>(root.at("workers").integer(1, 65536));
  result.host = root.at("host").string();
  result.clock = root.at("clock").string();
  const JsonCursor facts = root.at("facts");
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const JsonCursor fact = facts.at(i);
    if (fact.size() != 2) fact.fail("expected [what, value]");
    result.facts.push_back({fact.at(std::size_t{0}).string(), fact.at(1).string()});
  }
  return result;
}

std::string disagreement(const Introduction& first, const Introduction& other) {
  const auto all = [](const Introduction& worker) {
    std::vector<Fact> facts{{"number of workers", std::to_string(worker.workers)}};
    facts.insert(facts.end(), worker.facts.begin(), worker.facts.end());
    return facts;
  };
  const auto value_in = [](const std::vector<Fact>& facts, const std::string& what) -> std::string {
    const auto found =
        std::find_if(facts.begin(), facts.end(), [&](const Fact& f) { return f.what == what; });
    return found == facts.end() ? "unknown" : found->value;
  };
  const std::vector<Fact> theirs = all(other), ours = all(first);
  std::vector<Fact> asked = ours;
  for (const Fact& fact : theirs) {
    if (value_in(ours, fact.what) == "unknown") asked.push_back(fact);
  }
  std::string text;
  for (const Fact& fact : asked) {
    const std::string here = value_in(ours, fact.what), there = value_in(theirs, fact.what);
    if (here == there) continue;
    text += (text.empty() ? other.worker + " differs from " + first.worker + " in its " : " and in its ") +
            fact.what + " (" + there + ", not " + here + ")";
  }
  return text;
}

Fact plan_fact(const PlanFile& plan) {
  PlanFile content = plan;
  content.model.clear();
  content.planner.clear();
  content.cost_file.clear();
  content.notes.clear();
  content.seed = 0;  // a fact of its own
  Fingerprint hash;
  hash.add(print_plan_file(content));
  return {"plan", "fingerprint " + hash.hex()};
}

Fact file_fact(const std::string& what, const std::string& path) {
  constexpr std::uint64_t kBeginning = 64 << 10, kEnd = 1 << 20, kSamples = 64, kSample = 4 << 10;
  if (path.empty()) return {what, "none"};
  FileSampler file(path);
  file.add(0, kBeginning);
  file.add(file.size() - std::min(file.size(), kEnd), kEnd);
  for (std::uint64_t i = 0; i < kSamples; ++i) file.add(file.size() / kSamples * i, kSample);
  return {what, std::to_string(file.size()) + " bytes, hash " + file.hex()};
}

namespace {

// A file of weights, or a folder of them: then by their names and sizes.
Fact weights_fact(const std::string& what, const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return file_fact(what, path);
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    if (entry.path().extension() == ".safetensors") sizes[entry.path().filename()] = entry.file_size(ignored);
  }
  Fingerprint hash;
  for (const auto& [name, size] : sizes) hash.add(name), hash.add(size);
  return {what, std::to_string(sizes.size()) + " files, hash " + hash.hex()};
}

Fact checkpoint_fact(const std::string& what, const std::string& path) {
  const std::optional<std::string> found = path.empty() ? std::nullopt : find_checkpoint(path);
  if (!found) return {what, "none"};
  const CheckpointManifest manifest = read_manifest(*found);
  return {what, "step " + std::to_string(manifest.step) + ", hash " +
                    hex_text(content_hash(print_checkpoint(manifest)))};
}

}  // namespace

std::vector<Fact> run_facts(const PlanFile& plan, const std::string& model, const RunOptions& options) {
  std::vector<Fact> facts = program_facts("run");
  add_plan(facts, plan, model);
  facts.push_back({"steps", std::to_string(options.steps)});
  facts.push_back(file_fact("data", options.data));
  facts.push_back(weights_fact("weights to start from", options.load));
  facts.push_back(checkpoint_fact("checkpoint to go on from", options.resume));
  facts.push_back({"checkpoints", options.checkpoints
                                      ? "every " + std::to_string(options.checkpoints->every) + " steps"
                                      : "none"});
  facts.push_back(file_fact("evaluation data", options.evaluation_data));
  facts.push_back({"steps between evaluations", std::to_string(options.evaluate_every)});
  facts.push_back({"saving", options.save.empty() ? "no" : "yes"});
  facts.push_back({"recording", options.record.empty() ? "no" : "yes"});
  facts.push_back({"traced steps", std::to_string(static_cast<int>(options.trace))});
  return facts;
}

std::vector<Fact> paced_facts(const PlanFile& plan, const PacedOptions& options) {
  std::vector<Fact> facts = program_facts("run --paced");
  facts.push_back(plan_fact(plan));
  facts.push_back({"steps", std::to_string(options.steps)});
  facts.push_back({"times slower", std::to_string(options.slower)});
  return facts;
}

std::vector<Fact> verify_facts(const PlanFile& plan, const std::string& model, const VerifyOptions& options) {
  std::vector<Fact> facts = program_facts("verify");
  add_plan(facts, plan, model);
  facts.push_back({"steps", std::to_string(options.steps)});
  facts.push_back(file_fact("data", options.data));
  return facts;
}

std::vector<Fact> profile_facts(const std::string& model, const ProfileOptions& options) {
  std::vector<Fact> facts = program_facts("profile");
  facts.push_back(file_fact("model", model));
  facts.push_back({"seed", std::to_string(options.seed)});
  facts.push_back({"rounds", std::to_string(options.rounds)});
  std::string sizes;
  for (const BatchSize size : options.micro_batches) {
    if (!sizes.empty()) sizes += ' ';
    sizes += std::to_string(size.count());
  }
  facts.push_back({"micro-batches", sizes.empty() ? "default" : sizes});
  return facts;
}

}  // namespace espalier
