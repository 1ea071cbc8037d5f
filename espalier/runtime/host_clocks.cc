#include "espalier/runtime/host_clocks.h"

#include <algorithm>
#include <chrono>

namespace espalier {
namespace {

constexpr int kQuestions = 16;

bool same_clock(const Acquaintance& a, const Acquaintance& b) {
  return a.clock == b.clock && a.host == b.host;
}

// The lowest rank that reads the same clock.
std::uint32_t speaker_of(const Workers& workers, std::uint32_t rank) {
  std::uint32_t first = 0;
  while (!same_clock(workers.all[first], workers.all[rank])) ++first;
  return first;
}

Link control(const Workers& workers, std::uint32_t from, std::uint32_t to) {
  return {workers.first_devices[from], workers.first_devices[to], Lane::kControl};
}

ClockOffset ask_worker_zero(Workers& workers, const ReadClock& read) {
  Transport& transport = *workers.transport;
  const std::uint32_t me = transport.rank();
  std::vector<ClockQuestion> questions;
  for (int i = 0; i < kQuestions; ++i) {
    const auto answer = transport.post_receive(control(workers, 0, me), at::kLong, 2);
    ClockQuestion question;
    question.asked = read();
    const auto sent = transport.post_send(control(workers, me, 0), token());
    const at::Tensor times = answer->wait();
    question.returned = read();
    question.received = Duration(times[0].item<std::int64_t>());
    question.answered = Duration(times[1].item<std::int64_t>());
    sent->wait();
    questions.push_back(question);
  }
  const ClockOffset of_zero = estimate_offset(questions);
  return {-of_zero.offset, of_zero.uncertainty};
}

void answer(Workers& workers, std::uint32_t who, const ReadClock& read) {
  Transport& transport = *workers.transport;
  for (int i = 0; i < kQuestions; ++i) {
    transport.post_receive(control(workers, who, 0), at::kByte, 1)->wait();
    at::Tensor times = at::empty({2}, at::kLong);
    times[0] = read().count();
    times[1] = read().count();
    transport.post_send(control(workers, 0, who), times)->wait();
  }
}

}  // namespace

Duration steady_time() {
  return Duration(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

std::vector<ClockOffset> measure_clocks(Workers& workers, const ReadClock& read) {
  const std::uint32_t me = workers.transport->rank();
  std::vector<ClockOffset> clocks(workers.all.size());
  std::vector<std::uint32_t> speakers;
  for (std::uint32_t rank = 0; rank < workers.all.size(); ++rank) {
    if (rank != 0 && speaker_of(workers, rank) == rank) speakers.push_back(rank);
  }
  if (speakers.empty()) return clocks;
  ClockOffset mine;
  for (const std::uint32_t speaker : speakers) {
    if (me == speaker) mine = ask_worker_zero(workers, read);
    if (me == 0) answer(workers, speaker, read);
  }
  const std::vector<std::int64_t> told{mine.offset.count(), mine.uncertainty.count()};
  const auto all = exchange(*workers.transport, workers.first_devices, std::span<const std::int64_t>(told));
  for (std::uint32_t rank = 0; rank < clocks.size(); ++rank) {
    const auto& numbers = all[speaker_of(workers, rank)];
    const ClockOffset measured{Duration(numbers[0]), Duration(numbers[1])};
    // Containers of one kernel have other host names and one clock; a copied machine has the same name for
    // another clock. The measurement tells.
    const bool one_clock = workers.all[rank].clock == workers.all[0].clock &&
                           std::abs(measured.offset.count()) <= measured.uncertainty.count();
    if (!one_clock) clocks[rank] = measured;
  }
  return clocks;
}

std::vector<std::string> clock_notes(const Workers& workers, const std::vector<ClockOffset>& clocks) {
  std::vector<std::string> notes;
  for (std::uint32_t rank = 1; rank < clocks.size(); ++rank) {
    if (speaker_of(workers, rank) != rank || clocks[rank] == ClockOffset{}) continue;
    notes.push_back("clock offset " + workers.all[rank].host + " " + to_exact_text(clocks[rank].offset) +
                    " ±" + to_exact_text(clocks[rank].uncertainty));
  }
  return notes;
}

}  // namespace espalier
