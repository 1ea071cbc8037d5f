#include "espalier/report/curve_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "espalier/report/svg_parts.h"

namespace espalier {
namespace {

constexpr double kCurveWidth = 900, kCurveLeft = 90, kCurveRight = 30, kCurveTop = 56, kCurveHeight = 150,
                 kCurveGap = 44, kCurveFoot = 40;

constexpr std::string_view kCurveStyle =
    "<style>text{font-family:Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif;font-size:12px}"
    ".bg{fill:#ffffff}.t{fill:#17202a}.s{fill:#5b6775}.h{font-size:15px;font-weight:600}.e{text-anchor:end}"
    ".c{text-anchor:middle}.grid{stroke:#d8dfe6;stroke-width:1}.line{fill:none;stroke:#3a7cc6;stroke-width:2}"
    "@media "
    "(prefers-color-scheme:dark){.bg{fill:#0f1620}.t{fill:#e6edf3}.s{fill:#93a1b0}.grid{stroke:#2a3644}"
    "}</style>\n";

struct Range {
  double from = 1e300, to = -1e300;
  void add(double value) {
    from = std::min(from, value);
    to = std::max(to, value);
  }
  // In [0, 1]; the middle where all are equal.
  double part(double value) const { return to > from ? (value - from) / (to - from) : 0.5; }
};

std::string panel_text(const Curve& curve, const Range& x, double top) {
  Range y;
  for (const auto& [at, value] : curve.points) y.add(value);
  const auto place_y = [&](double value) { return top + kCurveHeight * (1 - y.part(value)); };
  std::string text = fmt::format("<text class=\"t\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", kCurveLeft,
                                 top - 8, xml_text(curve.name));
  for (const double value : {y.from, (y.from + y.to) / 2, y.to}) {
    text += fmt::format(
        "<line class=\"grid\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"s e\" x=\"{:.0f}\" y=\"{:.1f}\">{:.4g}</text>\n",
        kCurveLeft, kCurveWidth - kCurveRight, place_y(value), place_y(value), kCurveLeft - 8,
        place_y(value) + 4, value);
    if (y.from == y.to) break;
  }
  text += "<path class=\"line\" d=\"";
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const double at = kCurveLeft + x.part(curve.points[i].first) * (kCurveWidth - kCurveLeft - kCurveRight);
    text += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : " L", at, place_y(curve.points[i].second));
  }
  return text + "\"/>\n";
}

}  // namespace

std::string svg_curves(std::string_view title, std::string_view x_axis, std::span<const Curve> curves) {
  Range x;
  double panels = 0;
  for (const Curve& curve : curves) {
    for (const auto& [at, value] : curve.points) x.add(at);
    panels += curve.points.empty() ? 0 : 1;
  }
  const double height = kCurveTop + panels * (kCurveHeight + kCurveGap) + kCurveFoot;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
      "height=\"{:.0f}\">\n",
      kCurveWidth, height, kCurveWidth, height);
  svg += kCurveStyle;
  svg += fmt::format(
      "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n<text class=\"t h\" x=\"20\" "
      "y=\"26\">{}</text>\n",
      xml_text(title));
  double top = kCurveTop;
  for (const Curve& curve : curves) {
    if (curve.points.empty()) continue;
    svg += panel_text(curve, x, top);
    top += kCurveHeight + kCurveGap;
  }
  if (panels > 0) {
    svg += fmt::format(
        "<text class=\"s\" x=\"{:.0f}\" y=\"{:.1f}\">{:.4g}</text><text class=\"s c\" x=\"{:.0f}\" "
        "y=\"{:.1f}\">{}"
        "</text><text class=\"s e\" x=\"{:.0f}\" y=\"{:.1f}\">{:.4g}</text>\n",
        kCurveLeft, top - kCurveGap + 22, x.from, (kCurveLeft + kCurveWidth - kCurveRight) / 2,
        top - kCurveGap + 22, xml_text(x_axis), kCurveWidth - kCurveRight, top - kCurveGap + 22, x.to);
  }
  return svg + "</svg>\n";
}

std::string curve_text(const Curve& curve, int width) {
  constexpr std::array<std::string_view, 8> kHeights{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (curve.points.empty() || width <= 0) return "";
  const std::size_t columns = std::min(curve.points.size(), static_cast<std::size_t>(width));
  std::vector<double> means;
  Range range;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t begin = c * curve.points.size() / columns,
                      end = (c + 1) * curve.points.size() / columns;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += curve.points[i].second;
    means.push_back(sum / static_cast<double>(end - begin));
    range.add(means.back());
  }
  std::string text;
  for (const double mean : means) {
    const auto step = static_cast<std::size_t>(std::lround(range.part(mean) * (kHeights.size() - 1)));
    text += kHeights[step];
  }
  return text;
}

}  // namespace espalier
