#pragma once

// How something went, step by step: lines over one axis, as text and as a picture. The picture is one
// self-contained SVG 1.1 file, as svg.h's are.

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x
};

// Panels below one another, one for each curve, all over one axis; equal x stand below each other. A curve
// without points is left out.
std::string svg_curves(std::string_view title, std::string_view x_axis, std::span<const Curve> curves);

// One line of `width` characters, eight heights; the mean of the points in each column.
std::string curve_text(const Curve& curve, int width);

}  // namespace espalier
