#include "espalier/report/dot_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "espalier/report/svg_parts.h"

namespace espalier {
namespace {

constexpr double kDotWidth = 900, kDotLeft = 190, kDotRight = 40, kDotTop = 24, kDotRow = 24, kDotHead = 52;
constexpr double kDotGap = 22, kDotFoot = 46;

constexpr std::string_view kDotStyle =
    "<style>text{font-family:Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif}"
    ".bg{fill:#ffffff}.t{fill:#17202a}.s{fill:#5b6775}.grid{stroke:#d8dfe6;stroke-width:1}"
    ".dot{fill:#8a94a0}.bar{stroke:#8a94a0;stroke-width:2}.best{fill:#3a7cc6}.bestbar{stroke:#3a7cc6;"
    "stroke-width:2}.n{font-size:14px;font-weight:600}.d{font-size:12px}.e{text-anchor:end}.c{text-anchor:"
    "middle}@media (prefers-color-scheme:dark){.bg{fill:#0f1620}.t{fill:#e6edf3}.s{fill:#93a1b0}"
    ".grid{stroke:#2a3644}}</style>\n";

// The least round step (1, 2 or 5 times a power of ten) that cuts the length into at most six.
double round_step(double length) {
  double step = 1e-6;
  for (int i = 0; length / step > 6; ++i) step *= i % 3 == 1 ? 2.5 : 2;
  return step;
}

struct Scale {
  double from = 0, to = 1;
  double x(double value) const {
    return kDotLeft + (value - from) / (to - from) * (kDotWidth - kDotLeft - kDotRight);
  }
};

Scale scale_of(std::span<const DotPanel> panels) {
  Scale scale{1e300, -1e300};
  for (const DotPanel& panel : panels) {
    for (const DotRow& row : panel.rows) {
      scale.from = std::min(scale.from, row.mean - row.deviation);
      scale.to = std::max(scale.to, row.mean + row.deviation);
    }
  }
  if (scale.from > scale.to) scale = {0, 1};
  const double margin = std::max(1e-3, 0.04 * (scale.to - scale.from));
  return {scale.from - margin, scale.to + margin};
}

std::string row_text(const DotRow& row, const Scale& scale, double y) {
  const std::string title =
      row.title.empty() ? fmt::format("{:.4g} ± {:.2g}", row.mean, row.deviation) : row.title;
  return fmt::format(
      "<g><title>{}: {}</title><text class=\"t d e\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>"
      "<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
      "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/></g>\n",
      xml_text(row.name), xml_text(title), kDotLeft - 14, y + 4, xml_text(row.name),
      row.marked ? "bestbar" : "bar", scale.x(row.mean - row.deviation), scale.x(row.mean + row.deviation), y,
      y, row.marked ? "best" : "dot", scale.x(row.mean), y);
}

}  // namespace

std::string svg_dot_plot(std::span<const DotPanel> panels, const std::string& axis) {
  const Scale scale = scale_of(panels);
  double height = kDotTop + kDotFoot;
  for (const DotPanel& panel : panels)
    height += kDotHead + kDotGap + kDotRow * static_cast<double>(panel.rows.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n{2}<rect class=\"bg\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n",
      kDotWidth, height, kDotStyle);
  const double bottom = height - kDotFoot, step = round_step(scale.to - scale.from);
  auto first = static_cast<std::int64_t>(scale.from / step);
  for (; static_cast<double>(first) * step <= scale.to; ++first) {
    const double value = static_cast<double>(first) * step;
    if (value < scale.from) continue;
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>"
        "<text class=\"s d c\" x=\"{0:.1f}\" y=\"{3:.0f}\">{4:.6g}</text>\n",
        scale.x(value), kDotTop, bottom, bottom + 16, value);
  }
  out += fmt::format("<text class=\"s d c\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n",
                     (kDotLeft + kDotWidth - kDotRight) / 2, bottom + 36, xml_text(axis));
  double y = kDotTop;
  for (const DotPanel& panel : panels) {
    out += fmt::format(
        "<text class=\"t n\" x=\"24\" y=\"{:.0f}\">{}</text><text class=\"s d\" x=\"24\" "
        "y=\"{:.0f}\">{}</text>"
        "\n",
        y + 16, xml_text(panel.title), y + 34, xml_text(panel.subtitle));
    y += kDotHead;
    for (const DotRow& row : panel.rows) {
      out += row_text(row, scale, y + kDotRow / 2);
      y += kDotRow;
    }
    y += kDotGap;
  }
  return out + "</svg>\n";
}

}  // namespace espalier
