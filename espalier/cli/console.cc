#include "espalier/cli/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "espalier/report/table.h"

namespace espalier::cli {

void Console::lines(std::string_view label, int colour, const std::vector<std::string>& lines) {
  if (json) return;
  finish();
  for (const std::string& line : lines) {
    if (!said_.insert(line).second) continue;
    if (terminal_.err && terminal_.colours && !no_colour) {
      err_ << fmt::format("\x1b[38;5;{}m{}:\x1b[0m {}\n", colour, label, line);
    } else {
      err_ << label << ": " << line << '\n';
    }
  }
}

void Console::notes(const std::vector<std::string>& list) {
  lines("note", 67, list);
}
void Console::warnings(const std::vector<std::string>& list) {
  lines("warning", 172, list);
}

void Console::progress(double fraction, std::string_view text) {
  if (!terminal_.err) return;
  constexpr int kCells = 24;
  const int filled = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * kCells));
  std::string bar;
  for (int i = 0; i < kCells; ++i) bar += i < filled ? "█" : "░";
  std::string line = fmt::format("{} {:3.0f} %  {}", bar, 100 * std::clamp(fraction, 0.0, 1.0), text);
  while (display_width(line) + 1 > static_cast<std::size_t>(terminal_.width)) line.pop_back();
  err_ << "\r\x1b[K" << line << std::flush;
  drawn_ = true;
}

void Console::finish() {
  if (drawn_) err_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void Console::flush() {
  out_.flush();
  err_.flush();
}

SearchWatch::Listener Console::search_listener() {
  if (!terminal_.err) return {};
  return [this](const SearchProgress& search) {
    const auto now = std::chrono::steady_clock::now();
    if (drawn_at_ && now - *drawn_at_ < std::chrono::milliseconds(50)) return;
    drawn_at_ = now;
    progress(search.fraction, search_text(search));
  };
}

namespace {

std::string short_count(std::uint64_t count) {
  if (count < 10'000) return std::to_string(count);
  if (count < 10'000'000) return fmt::format("{} k", count / 1'000);
  return fmt::format("{} M", count / 1'000'000);
}

}  // namespace

std::string search_text(const SearchProgress& search) {
  std::string text = std::string(search.planner) + ": ";
  if (search.best) {
    text += "best " + to_text(*search.best);
    if (const auto gap = search.gap()) text += fmt::format(", {:.1f} % above the bound", 100 * *gap);
  } else {
    text += "no plan yet";
  }
  return text + fmt::format("; {} states, {} plans", short_count(search.stats.states),
                            short_count(search.stats.evaluations));
}

}  // namespace espalier::cli
