#pragma once

// A trace as a picture: devices as lanes, forward and backward in two tones of each stage's hue, links as
// thin lanes below their sender, memory over time below with its capacity. Several panels share one time
// axis, so a prediction and its measurement, or a chain and a graph pipeline, can be laid side by side.
//
// One self-contained SVG 1.1 file: no script, no font file; every bar has a hover title; it follows the
// reader's light or dark theme unless told.

#include <span>
#include <string>

#include "espalier/trace/trace.h"

namespace espalier {

struct SvgPanel {
  const Trace& trace;
  std::string title;     // "graph pipeline"
  std::string subtitle;  // empty: iteration time and idle share
};

struct SvgOptions {
  enum class Theme { kAuto, kLight, kDark } theme = Theme::kAuto;
  int width = 1200;  // of the drawing's own units; viewers scale it
  bool links = true;
  bool memory = true;
};

std::string svg_timeline(std::span<const SvgPanel> panels, const SvgOptions& options = {});

}  // namespace espalier
