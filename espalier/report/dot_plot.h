#pragma once

// Figures with their deviations as a picture: a panel for each question, a row for each contender, a dot at
// its mean and a whisker of one deviation to both sides. All panels share one axis. One self-contained SVG
// 1.1 file, as svg.h's are.

#include <span>
#include <string>
#include <vector>

namespace espalier {

struct DotRow {
  std::string name;
  double mean = 0, deviation = 0;
  bool marked = false;     // filled in another tone: the best, or those no worse than it
  std::string title = {};  // shown where the mouse rests; empty: the figures
};
struct DotPanel {
  std::string title, subtitle;
  std::vector<DotRow> rows;
};

// `axis` says what the figures are: "step ÷ that of the best order".
std::string svg_dot_plot(std::span<const DotPanel> panels, const std::string& axis);

}  // namespace espalier
