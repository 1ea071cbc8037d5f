#include "espalier/runtime/handshake.h"

#include <chrono>
#include <optional>
#include <thread>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/runtime/store.h"

namespace espalier {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::string_view kVerdictFormat = "espalier.verdict/1";
constexpr std::chrono::seconds kToHear{
    5};  // how long worker 0 stays for those who have yet to hear a refusal
constexpr std::size_t kMostNamed = 3;

std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
std::string introduction_key(std::uint32_t rank) {
  return "introduction/" + std::to_string(rank);
}

// The text under a key, or nothing if it does not come in time.
std::optional<std::string> await(c10d::Store& store, const std::string& key, Time deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  try {
    store.wait({key}, std::max(left, std::chrono::milliseconds(1)));
  } catch (const std::exception&) {
    if (std::chrono::steady_clock::now() < deadline) throw;  // the store failed
    return std::nullopt;
  }
  return text_of(store.get(key));
}

struct Verdict {
  enum class Kind : std::uint8_t { kAgree, kDiffer, kMissing } kind = Kind::kAgree;
  std::string problem;
  std::vector<Acquaintance> workers;
};

std::string print_verdict(const Verdict& verdict) {
  Json json = Json::object();
  json["format"] = kVerdictFormat;
  json["kind"] = static_cast<int>(verdict.kind);
  json["problem"] = verdict.problem;
  json["workers"] = Json::array();
  for (const Acquaintance& worker : verdict.workers)
    json["workers"].push_back({worker.worker, worker.host, worker.clock});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Verdict parse_verdict(const std::string& text) {
  const std::string where = "the verdict of worker 0";
  const Json json = parse_json(text, where);
  const JsonCursor root(json, where);
  root.expect_format(kVerdictFormat);
  Verdict verdict;
  verdict.kind = static_cast<Verdict::Kind>(root.at("kind").integer(0, 2));
  verdict.problem = root.at("problem").string();
  const JsonCursor workers = root.at("workers");
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const JsonCursor worker = workers.at(i);
    verdict.workers.push_back(
        {worker.at(std::size_t{0}).string(), worker.at(1).string(), worker.at(2).string()});
  }
  return verdict;
}

// Worker 0's part. After the first difference only those are looked at who have come already.
Verdict compare_all(c10d::Store& store, const World& world, const Introduction& mine, Time deadline) {
  Verdict verdict{.problem = {}, .workers = {{mine.worker, mine.host, mine.clock}}};
  std::size_t differing = 0;
  for (std::uint32_t rank = 1; rank < world.size; ++rank) {
    const std::string key = introduction_key(rank), name = "worker " + std::to_string(rank);
    if (differing > 0 && !store.check({key})) continue;
    const auto text = await(store, key, deadline);
    if (!text) {
      return {
          Verdict::Kind::kMissing,
          name + " did not come to the meeting place at " + world.address + ":" + std::to_string(world.port),
          {}};
    }
    std::string problem;
    try {
      const Introduction other = parse_introduction(*text, "the introduction of " + name);
      problem = disagreement(mine, other);
      verdict.workers.push_back({other.worker, other.host, other.clock});
    } catch (const InputError& error) {
      problem = error.what();
    }
    if (problem.empty() || ++differing > kMostNamed) continue;
    verdict.kind = Verdict::Kind::kDiffer;
    verdict.problem += (verdict.problem.empty() ? "" : "; ") + problem;
  }
  if (differing > kMostNamed)
    verdict.problem += "; and " + std::to_string(differing - kMostNamed) + " workers more";
  if (differing > 0) verdict.problem += ": start all workers with one program, the same files and options";
  return verdict;
}

void wait_until_heard(c10d::Store& store, const World& world) {
  const auto deadline = std::chrono::steady_clock::now() + kToHear;
  while (store.add("verdict heard", 0) < static_cast<std::int64_t>(world.size) - 1 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

std::vector<Acquaintance> shake_hands(c10d::Store& store, const World& world, const Introduction& mine,
                                      Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout.count());
  Verdict verdict;
  try {
    if (store.add("rank taken/" + std::to_string(world.rank), 1) > 1) {
      throw InputError("two workers were started as worker " + std::to_string(world.rank) +
                       ": give each a RANK of its own");
    }
    if (world.rank == 0) {
      verdict = compare_all(store, world, mine, deadline);
      store.set("verdict", bytes_of(print_verdict(verdict)));
      if (verdict.kind != Verdict::Kind::kAgree) wait_until_heard(store, world);
    } else {
      store.set(introduction_key(world.rank), bytes_of(print_introduction(mine)));
      const auto text = await(store, "verdict", deadline + kToHear);
      if (!text) {
        verdict = {Verdict::Kind::kMissing, "worker 0 came to the meeting place and did not answer", {}};
      } else {
        verdict = parse_verdict(*text);
        if (verdict.kind != Verdict::Kind::kAgree) store.add("verdict heard", 1);
      }
    }
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    throw WorkerError("the workers did not meet at " + world.address + ":" + std::to_string(world.port) +
                      ": " + reason_of(error));
  }
  if (verdict.kind == Verdict::Kind::kMissing)
    throw WorkerError(verdict.problem + " within " + to_text(timeout));
  if (verdict.kind == Verdict::Kind::kDiffer) throw InputError(verdict.problem);
  if (verdict.workers.size() != world.size) {
    throw InputError(mine.worker + " was started as one of " + std::to_string(world.size) +
                     " workers, worker 0 as one of " + std::to_string(verdict.workers.size()));
  }
  return verdict.workers;
}

}  // namespace espalier
