#pragma once

// Where a verb writes, and how: results to `out`, warnings and progress to `err`, so that pipes stay clean.

#include <chrono>
#include <functional>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/app/planning_job.h"
#include "espalier/report/gantt.h"

namespace espalier::cli {

// "branches: best 26 ms, 30.0 % above the bound; 1.2 M states, 340 plans".
std::string search_text(const SearchProgress& progress);

struct Terminal {
  bool out = false;      // standard output is one
  bool err = false;      // standard error is one
  bool colours = false;  // it shows them and nobody set NO_COLOR
  int width = 100;
};

class Console {
 public:
  Console(std::ostream& out, std::ostream& err, const Terminal& terminal)
      : out_(out), err_(err), terminal_(terminal) {}

  std::ostream& out() { return out_; }
  std::ostream& err() { return err_; }
  const Terminal& terminal() const { return terminal_; }
  int width() const { return terminal_.width; }
  Colour colour() const {
    return terminal_.out && terminal_.colours && !no_colour ? Colour::kAnsi : Colour::kNever;
  }

  // Lines on `err`: "note: …", "warning: …"; a line that was said before is not said again, and with --json
  // none is.
  void notes(const std::vector<std::string>& lines);
  void warnings(const std::vector<std::string>& lines);

  // A line on `err` that is drawn again and again, if it is a terminal; else nothing. `finish` wipes it.
  void progress(double fraction, std::string_view text);
  void finish();
  // What both streams still hold is written.
  void flush();
  // A search's progress there, some twenty times a second.
  SearchWatch::Listener search_listener();

  bool draws_progress() const { return terminal_.err; }

  bool json = false;       // --json
  bool no_colour = false;  // --no-color

 private:
  void lines(std::string_view label, int colour, const std::vector<std::string>& lines);

  std::ostream& out_;
  std::ostream& err_;
  Terminal terminal_;
  bool drawn_ = false;
  std::optional<std::chrono::steady_clock::time_point> drawn_at_ = {};  // a search's progress
  std::set<std::string> said_;                                          // notes and warnings
};

}  // namespace espalier::cli
